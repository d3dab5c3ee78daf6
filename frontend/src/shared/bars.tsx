// A list of shares, each with a bar.

export interface Bar {
  key: string | number;
  /** A number before the name. */
  at?: string | number;
  name: string;
  /** What stands between the name and the bar. */
  more?: string | false;
  /** How long its bar is, of 1. */
  share: number;
  /** It is below 0. */
  less?: boolean;
  words: string;
  pressed?: boolean;
  /** Without it the name is no button. */
  onClick?: () => void;
}

export function Bars({ bars, kind = "" }: { bars: readonly Bar[]; kind?: string }) {
  return (
    <ol class={`ch-bars${kind}`}>
      {bars.map(({ key, at, name, more, share, less, words, pressed, onClick }) => (
        <li key={key}>
          {at !== undefined && <span class="ch-bar-at">{at}</span>}
          {onClick ? (
            <button type="button" class="ch-link" aria-pressed={pressed} onClick={onClick}>
              <bdi>{name}</bdi>
            </button>
          ) : (
            <bdi class="ch-bar-name">{name}</bdi>
          )}
          {more !== undefined && <bdi class="ch-bar-name">{more}</bdi>}
          <span class="ch-bar" aria-hidden="true">
            <span
              class={less ? "ch-less" : ""}
              style={{ width: `${Math.max(1, 100 * Math.min(1, share))}%` }}
            />
          </span>
          <span class="ch-bar-words">{words}</span>
        </li>
      ))}
    </ol>
  );
}
