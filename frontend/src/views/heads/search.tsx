// The search for a token: Enter goes from one to the next.

import { useMemo, useState } from "preact/hooks";
import type { Point } from "../../shared/map";
import { number } from "../../shared/scale";
import type { Signal } from "../../shared/signals";
import type { HeadsData, LayerData } from "./data";
import { found } from "./start";

interface SearchProps {
  data: HeadsData;
  layer: LayerData;
  input: { current: HTMLInputElement | null };
  search: Signal<string>;
  pinned: Point;
  goTo: (point: Point) => void;
}

export function Search({ data, layer, input, search, pinned, goTo }: SearchProps) {
  const [at, setAt] = useState(0);
  const wanted = search.value;
  const hits = useMemo(() => (wanted ? found(data, layer, wanted) : []), [data, layer, wanted]);
  if ((layer.key.text ?? layer.query.text) === null) return null;
  const hit = hits[at];
  const isAt = hit?.query === pinned.query && hit?.key === pinned.key;
  return (
    <form
      class="ch-search"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        const place = (isAt ? at + 1 : at) % hits.length;
        if (!hits.length) return;
        setAt(place);
        goTo(hits[place]!);
      }}
    >
      <input
        ref={input}
        type="search"
        placeholder="Search for a token"
        aria-label="Search for a token"
        value={wanted}
        onInput={(event) => {
          search.value = event.currentTarget.value;
          setAt(0);
        }}
      />
      <span role="status">
        {wanted &&
          (hits.length ? `${isAt ? `${at + 1} of ` : ""}${number(hits.length)}` : "not there")}
      </span>
    </form>
  );
}
