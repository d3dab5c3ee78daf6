// The buttons beside the title.

import { CopyLink } from "../../shared/address";
import type { ReadonlySignal, Signal } from "../../shared/signals";

interface ToolsProps {
  comparing: boolean;
  minus: ReadonlySignal<boolean>;
  playing: Signal<boolean>;
  /** The state stands in the address. */
  linked: boolean;
  compare: () => void;
  subtract: () => void;
  picture: (kind: "png" | "svg") => void;
}

export function Tools(props: ToolsProps) {
  const { comparing, minus, playing, linked, compare, subtract, picture } = props;
  return (
    <>
      <button type="button" class="ch-button" aria-pressed={comparing} onClick={compare}>
        Compare
      </button>
      {comparing && (
        <button type="button" class="ch-button" aria-pressed={minus.value} onClick={subtract}>
          A − B
        </button>
      )}
      <button
        type="button"
        class="ch-button"
        aria-pressed={playing.value}
        onClick={() => (playing.value = !playing.value)}
      >
        Play
      </button>
      {linked && <CopyLink />}
      <button type="button" class="ch-button" onClick={() => picture("png")}>
        PNG
      </button>
      <button type="button" class="ch-button" onClick={() => picture("svg")}>
        SVG
      </button>
    </>
  );
}
