// One head: its map, its numbers, and the text.

import { useEffect, useMemo } from "preact/hooks";
import { put } from "../../shared/fields";
import { label, short } from "../../shared/labels";
import { Legend } from "../../shared/legend";
import { useLoaded } from "../../shared/loaded";
import { type Found, HeatMap, moved, type Point } from "../../shared/map";
import type { ReadonlySignal, Signal } from "../../shared/signals";
import type { Source, Tile } from "../../source";
import { pin as pinned } from "./actions";
import { HeadsLegend } from "./chips";
import { type HeadMap, type HeadsData, isFew, type LayerData, looksAtItself } from "./data";
import { Facts, roleCard } from "./facts";
import { filtered, leftOut, shownTile } from "./filter";
import { type Chosen, score, titleOf } from "./names";
import { Numbers } from "./numbers";
import { photosOf } from "./photo";
import { RunName } from "./run_names";
import { HUES, mixed, titleOfSeveral, toggled } from "./several";
import { NOTHING, ofToken, type View, type ViewState } from "./state";
import { type Side, Texts } from "./text";
import { fromWeights, headMap } from "./tiles";
import { Why } from "./why_panel";
import { detail, inside, matches, nameOf, sentence, tokenOf } from "./words";
import { Writes } from "./writes";

/** What two heads side by side have in common. */
export interface Shared extends View {
  hover: Signal<Point>;
  search: Signal<string>;
  chooseSeveral: (heads: Chosen[]) => void;
  /** Where the colours of the maps end, and those of single weights, as in the text: one scale for all
   * heads that are shown. */
  top: ReadonlySignal<number>;
  end: ReadonlySignal<number>;
}

interface PanelProps {
  data: HeadsData;
  source: Source;
  chosen: Chosen;
  shared: Shared;
  /** Filled with what an export needs. */
  drawn: Signal<Tile | null>;
  /** Filled with the weight at which the colours of this head would end. */
  ownEnd: Signal<number>;
  withText: boolean;
}

/** The maps of a head, or of several, when they are there, and what went wrong. */
export function useHeadMaps(
  source: Source,
  data: HeadsData,
  heads: readonly Chosen[],
): [HeadMap[] | null, string] {
  const load = () =>
    Promise.all(heads.map(({ layer, head }) => headMap(source, layer, data.layers[layer]!, head)));
  const { value, fresh, failed } = useLoaded(load, [data, source, JSON.stringify(heads)]);
  return [
    (fresh && value) || null,
    failed instanceof Error ? failed.message : String(failed ?? ""),
  ];
}

/** A head, or several as one, as it is and without what is left out. */
function useShown(source: Source, data: HeadsData, chosen: Chosen, shared: Shared) {
  const layer = data.layers[chosen.layer]!;
  const heads = shared.heads.value;
  const [kinds, weight] = [shared.without.value, shared.least.value];
  const [maps, failed] = useHeadMaps(source, data, heads.length ? heads : [chosen]);
  const out = useMemo(() => leftOut(data, layer, kinds), [data, layer, kinds]);
  return useMemo(() => {
    const raw = maps && mixed(maps);
    const own = (map: HeadMap) => filtered(map, out, weight);
    return {
      raw,
      map: raw && own(raw),
      coloured:
        maps && heads.length && heads.length <= HUES
          ? maps.map((each, hue) => ({ map: own(each), hue }))
          : null,
      out,
      failed,
    };
  }, [maps, heads, out, weight, failed]);
}

/** What is pointed at, or else pinned, as far as the layer has it. */
export function useActive(layer: LayerData, { hover, pin }: Shared): Point {
  const here = hover.value.query !== null || hover.value.key !== null ? hover.value : pin.value;
  return useMemo(() => inside(here, layer), [layer, here]);
}

export function useFound(data: HeadsData, layer: LayerData, { search }: Shared): Found {
  const wanted = search.value;
  return useMemo(() => {
    const of = (side: "query" | "key", count: number) =>
      wanted ? matches(count, tokenOf(data, layer, side), wanted) : [];
    return { queries: of("query", layer.queries), keys: of("key", layer.keys) };
  }, [data, layer, wanted]);
}

/** Pins a point, or lets go of it. */
export function pin(point: Point, { queries, keys }: LayerData, shared: Shared) {
  const state = { pin: shared.pin.value, view: shared.view.value };
  put<ViewState>(shared, pinned(state, point, queries, keys));
  shared.hover.value = NOTHING;
}

type TextProps = Pick<PanelProps, "data" | "source" | "chosen" | "shared">;

/** The text that a head reads, or both texts. */
export function HeadText({ data, source, chosen, shared }: TextProps) {
  const layer = data.layers[chosen.layer]!;
  const { map, coloured } = useShown(source, data, chosen, shared);
  const active = useActive(layer, shared);
  const found = useFound(data, layer, shared);
  const sides = useMemo(() => sidesOf(data, layer), [data, layer]);
  const pinBoth = (point: Point, asKey: boolean) => {
    const { query } = shared.pin.value;
    // One of two texts is a query or a key already.
    const both = point.token ? asKey : point.query === null || asKey;
    if (both && query !== null && point.key !== null) point = { query, key: point.key };
    pin(point, layer, shared);
  };
  if (sides.length === 0) return null;
  return (
    <Texts
      source={source}
      sides={sides}
      map={map}
      heads={coloured}
      active={active}
      found={found}
      end={shared.end}
      least={shared.least.value}
      onHover={(point) => (shared.hover.value = point)}
      onPin={pinBoth}
    />
  );
}

const ZOOMS: [sign: string, name: string, zoom: number][] = [
  ["+", "Zoom in", 1.6],
  ["−", "Zoom out", 1 / 1.6],
  ["All", "All", 0],
];

export function Panel({ data, source, chosen, shared, drawn, ownEnd, withText }: PanelProps) {
  const layer = data.layers[chosen.layer]!;
  const { view, hover } = shared;
  const { raw, map: ready, out, failed } = useShown(source, data, chosen, shared);
  const queryName = useMemo(() => nameOf(data, layer, "query"), [data, layer]);
  const keyName = useMemo(() => nameOf(data, layer, "key"), [data, layer]);
  useEffect(() => {
    ownEnd.value = ready?.end ?? 0;
  }, [ready, ownEnd]);
  const tile = drawn.value;
  const top = shared.top.value;
  const beyond = useMemo(() => tile?.values.some((value) => value > 1.001 * top), [tile, top]);
  const self = looksAtItself(layer);
  const active = useActive(layer, shared);
  const found = useFound(data, layer, shared);
  const row = layer.rows[chosen.head]!;
  const roles = data.roles.all.filter((role) => (row.scores[role] ?? null) !== null);
  const { query, key, token } = inside(shared.pin.value, layer);
  const asked =
    query !== null && key !== null && !token && (layer.why || source.pair)
      ? { query, key_: key }
      : null;
  const heads = shared.heads.value;
  const alone = heads.length === 0;
  const written = Boolean(data.writes) && alone && layer.run === 0;
  const title = alone ? titleOf(data, chosen) : titleOfSeveral(data, heads);
  const pictured = photosOf(data, layer).length > 0;
  const text = withText && <HeadText data={data} source={source} chosen={chosen} shared={shared} />;
  const textFirst = isFew(layer) || pictured;
  return (
    <article class="ch-panel" aria-label={title}>
      <div class="ch-panel-head">
        <h2>{title}</h2>
        <RunName data={data} run={layer.run} />
        {alone && row.role && !pictured && (
          <span class="ch-role" title={roleCard(row.role)}>
            {row.role} {Math.round(score(row) * 100)} %
          </span>
        )}
        {alone && (
          <span class="ch-path">
            <bdi>{layer.name ? label(layer.name) : "the model"}</bdi>
          </span>
        )}
      </div>
      {!alone && (
        <HeadsLegend
          data={data}
          heads={heads}
          remove={(each) => shared.chooseSeveral(toggled(data, heads, chosen, each))}
        />
      )}
      {failed && <p role="alert">{failed}</p>}
      <p class="ch-sentence" role="status">
        {sentence(
          active,
          { tile, raw, shown: ready, out, patches: pictured },
          layer,
          queryName,
          keyName,
        )}
      </p>
      {asked && alone && raw && (
        <Why data={data} source={source} chosen={chosen} map={raw} {...asked} open={shared.why} />
      )}
      {written && query !== null && (
        <Writes
          data={data}
          source={source}
          chosen={chosen}
          query={query}
          name={short(queryName(query), 16)}
          open={shared.writes}
        />
      )}
      <div class="ch-panel-body">
        <div class="ch-map-side">
          {textFirst && text}
          <HeatMap
            rows={layer.queries}
            columns={layer.keys}
            name={`Map of ${title.toLowerCase()}: queries down, keys across`}
            rowLabel={(at) => short(queryName(at), 8)}
            columnLabel={(at) => short(keyName(at), 8)}
            tile={async (rows, columns, cells, abort) => {
              const request = { ...chosen, rows, columns, cells, abort };
              if (!alone) return ready && fromWeights(ready, request);
              return shownTile(data, source, request, shared.without.value, shared.least.value);
            }}
            viewport={view}
            hover={hover}
            pinned={shared.pin}
            marks={found}
            onPin={(point) => pin(point, layer, shared)}
            drawn={drawn}
            top={shared.top}
            version={[
              chosen.layer,
              chosen.head,
              source.changed?.value ?? 0,
              shared.without.value,
              shared.least.value,
              alone ? "" : `${title} ${JSON.stringify(heads)} ${ready === null}`,
            ].join("/")}
          />
          <div class="ch-under">
            <Legend top={top} beyond={beyond ?? false} unit="of a query’s attention" />
            <div class="ch-zoom" role="group" aria-label="Zoom">
              {ZOOMS.map(([sign, name, zoom]) => (
                <button
                  key={sign}
                  type="button"
                  class="ch-button"
                  aria-label={name}
                  onClick={() =>
                    (view.value = moved(view.value, layer.queries, layer.keys, { zoom }))
                  }
                >
                  {sign}
                </button>
              ))}
            </div>
          </div>
          <p class="ch-remark">{detail(tile, layer, ready)}</p>
        </div>
        {ready && (
          <Numbers
            place={chosen.layer}
            map={ready}
            out={out}
            alone={alone}
            source={source}
            active={active}
            queryName={queryName}
            keyName={keyName}
            onPin={({ query, key }) =>
              pin(
                self && key !== null ? { ...ofToken(key, layer), token: false } : { query, key },
                layer,
                shared,
              )
            }
          />
        )}
      </div>
      {!textFirst && text}
      {alone && <Facts row={row} roles={pictured ? [] : roles} />}
    </article>
  );
}

/** The texts of a layer; one that attends to itself is one side. */
function sidesOf(data: HeadsData, layer: LayerData): Side[] {
  const sides: [title: string, kinds: Side["kinds"]][] = looksAtItself(layer)
    ? [["Text", ["query", "key"]]]
    : [
        ["Queries", ["query"]],
        ["Keys", ["key"]],
      ];
  const { queries, keys } = layer;
  const photos = photosOf(data, layer);
  const place = { firstQuery: layer.query.first, firstKey: layer.key.first, queries, keys };
  return sides.flatMap(([title, kinds]) => {
    const { text } = layer[kinds[0]!];
    if (text === null) return [];
    const own = kinds.includes("key") ? photos : [];
    return [{ ...place, photos: own, kinds, title, tokens: data.texts[text]! }];
  });
}
