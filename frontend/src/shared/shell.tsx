// What every view stands in: the title, the tools, the help, dark and light.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Missing } from "./address";
import { inFrame } from "./host";
import { useKeys } from "./keys";
import { label } from "./labels";
import { type Look, LookProvider } from "./look";
import { useOwnId } from "./own_id";

interface ShellProps {
  root: { current: HTMLDivElement | null };
  title: string;
  /** One line under the title. */
  note?: string;
  /** Buttons on the right of the title. */
  tools?: ComponentChildren;
  /** Without the title and the tools, inside another page. */
  bare?: boolean;
  /** What the help begins with. */
  guide?: ComponentChildren;
  /** Keys and what they do, in words, shown by "?"; and what does it. */
  keys: [string, string][];
  does?: Record<string, () => void>;
  look: Look;
  /** What the address asks for, and the page does not have. */
  missing: string[];
  /** Where a reader goes who wants none of the tools: its name, and how it is found. */
  skip: [name: string, selector: string];
  children: ComponentChildren;
}

export function Shell(props: ShellProps) {
  const { root, title, note, tools, bare, guide, keys, does, look, missing, skip, children } =
    props;
  const { theme, chosen, around } = look;
  const help = useRef<HTMLDialogElement>(null);
  const id = useOwnId();
  const open = () => help.current!.showModal();
  useKeys(root, { "?": open, ...does });
  useEffect(() => {
    const shell = root.current!;
    if (!shell.closest("#clearhead-page")) return;
    const height = () => shell.getBoundingClientRect().height;
    return inFrame(shell, height, (theme) => (around.value = theme));
  }, [root, around]);
  // What stands around it in its frame, too.
  useEffect(() => {
    if (bare) document.documentElement.style.colorScheme = theme.value;
  }, [bare, theme.value]);
  return (
    <LookProvider value={look}>
      <div class={`ch-shell${bare ? " ch-bare" : ""}`} data-theme={theme.value} ref={root}>
        <button
          type="button"
          class="ch-button ch-skip"
          onClick={() => root.current!.querySelector<HTMLElement>(skip[1])?.focus()}
        >
          Skip to {skip[0]}
        </button>
        {!bare && (
          <header class="ch-header">
            <div class="ch-titles">
              <h1 dir="auto">{label(title).replaceAll("␣", " ")}</h1>
              {note && <p class="ch-note">{note}</p>}
            </div>
            <div class="ch-tools">
              {tools}
              <button
                type="button"
                class="ch-button"
                onClick={() => (chosen.value = theme.value === "dark" ? "light" : "dark")}
              >
                {theme.value === "dark" ? "Light" : "Dark"}
              </button>
              <button type="button" class="ch-button" onClick={open} aria-keyshortcuts="?">
                Help
              </button>
            </div>
          </header>
        )}
        <Missing missing={missing} />
        {children}
        <dialog class="ch-help" ref={help} aria-labelledby={id}>
          <form method="dialog" class="ch-help-close">
            <button type="submit" class="ch-button">
              Close
            </button>
          </form>
          {guide}
          <h2 id={id}>Keys</h2>
          <dl>
            {keys.map(([key, does]) => (
              <div key={key}>
                <dt>
                  <kbd>{key}</kbd>
                </dt>
                <dd>{does}</dd>
              </div>
            ))}
          </dl>
        </dialog>
      </div>
    </LookProvider>
  );
}
