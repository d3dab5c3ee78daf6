// A token through the layers: a row for each, and the rollout as the last one.

import { useMemo } from "preact/hooks";
import { Details } from "../../shared/details";
import { short } from "../../shared/labels";
import { useLoaded } from "../../shared/loaded";
import { HeatMap, type Point, whole } from "../../shared/map";
import { percent } from "../../shared/scale";
import { computed, useSignal } from "../../shared/signals";
import type { Source, Tile } from "../../source";
import type { HeadsData, LayerData } from "./data";
import { depthOf, strip, stripTile } from "./depth";
import { layerName } from "./names";
import { pin, type Shared } from "./panel";
import { nameOf } from "./words";

interface DepthProps {
  data: HeadsData;
  source: Source;
  layer: LayerData;
  shared: Shared;
}

const NONE = { queries: [], keys: [] };

export function Depth({ data, source, layer, shared }: DepthProps) {
  const open = shared.depth;
  const { query } = shared.pin.value;
  const [queryName, keyName] = [nameOf(data, layer, "query"), nameOf(data, layer, "key")];
  const places = useMemo(() => depthOf(data, layer), [data, layer]);
  const shown = open.value && query !== null && places.length > 0;
  const { value, fresh } = useLoaded(
    () => (shown ? strip(data, source, places, query) : null),
    [data, source, places, query, shown],
  );
  const rows = (fresh && value) || null;
  const count = places.length + 1;
  const viewport = useSignal(whole(count, layer.keys));
  const hover = useSignal<Point>({ query: null, key: null });
  const pinned = useSignal<Point>({ query: null, key: null });
  const marks = useSignal(NONE);
  const drawn = useSignal<Tile | null>(null);
  const top = useMemo(() => computed(() => drawn.value?.top ?? 0), []);
  if (!places.length) return null;
  const name = (row: number) => {
    if (row === count - 1) return "rollout";
    return `layer ${layerName(data, places[row]!)}`;
  };
  const words = ({ query: row, key }: Point) => {
    if (!rows || row === null || key === null) return "Point at a cell.";
    return `${name(row)} → ${key} ${short(keyName(key), 16)}: ${percent(rows[row]![key]!)}`;
  };
  return (
    <Details
      kind=" ch-depth"
      open={open}
      title="Through the layers"
      ready={query === null || rows !== null}
    >
      {query === null ? (
        <p class="ch-remark">Pin a token, and see where it looks layer by layer.</p>
      ) : (
        <>
          <p class="ch-remark">
            Where <i>{short(queryName(query), 16)}</i> looks, on average over the heads of a layer;
            last, what each token of the input has in it after all layers (rollout).
          </p>
          <HeatMap
            rows={count}
            columns={layer.keys}
            down="layer"
            name="A token through the layers: layers down, keys across"
            rowLabel={name}
            columnLabel={(at) => short(keyName(at), 8)}
            tile={async (rowRange, columns, cells) =>
              rows && stripTile(rows, { layer: 0, head: 0, rows: rowRange, columns, cells })
            }
            viewport={viewport}
            hover={hover}
            pinned={pinned}
            marks={marks}
            onPin={({ key }) => pin({ query, key }, layer, shared)}
            drawn={drawn}
            top={top}
            version={`${places}/${query} ${rows === null}`}
            words={words}
          />
        </>
      )}
    </Details>
  );
}
