// The buttons beside the title.

import { CopyLink } from "../../shared/address";
import type { ReadonlySignal } from "../../shared/signals";

interface ToolsProps {
  comparing: boolean;
  minus: ReadonlySignal<boolean>;
  /** The state stands in the address. */
  linked: boolean;
  compare: () => void;
  subtract: () => void;
  picture: () => void;
}

export function Tools(props: ToolsProps) {
  const { comparing, minus, linked, compare, subtract, picture } = props;
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
      {linked && <CopyLink />}
      <button type="button" class="ch-button" onClick={picture}>
        Picture
      </button>
    </>
  );
}
