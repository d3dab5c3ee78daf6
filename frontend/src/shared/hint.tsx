// Words with an explanation that a click, a tap or Enter shows, and Escape hides again.
import type { ComponentChildren } from "preact";
import { useOwnId } from "./own_id";

export function Hint({ text, children }: { text: string; children: ComponentChildren }) {
  const id = useOwnId();
  return (
    <span class="ch-hint">
      <button type="button" class="ch-link" popovertarget={id}>
        {children}
      </button>
      <span id={id} popover="auto" role="note">
        {text}
      </span>
    </span>
  );
}
