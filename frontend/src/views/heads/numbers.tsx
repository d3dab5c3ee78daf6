// What is known of a token: its numbers, where it looks and who looks at it.

import { Bars } from "../../shared/bars";
import { short } from "../../shared/labels";
import { useLoaded } from "../../shared/loaded";
import type { Point } from "../../shared/map";
import { number, percent, quantity, ROUNDED, within } from "../../shared/scale";
import type { Source, TokenNumbers } from "../../source";
import { type HeadMap, type Link, ofHead, strongest } from "./data";
import { Fact } from "./facts";
import type { LeftOut } from "./filter";

const SHOWN = 6;
/** A bar of less cannot be seen, and ten of them tell nothing. */
export const LEAST = 0.001;

interface NumbersProps {
  place: number;
  map: HeadMap;
  /** What the map leaves out. */
  out: LeftOut | null;
  /** It is one head, and not several as one, of which there are no numbers. */
  alone: boolean;
  source: Source;
  active: Point;
  queryName: (query: number) => string;
  keyName: (key: number) => string;
  onPin: (point: Point) => void;
}

interface PerToken {
  entropy: Float32Array;
  distance: Float32Array;
  max: Float32Array;
  received: Float32Array;
}

export function Numbers(props: NumbersProps) {
  const { place, map, out, alone, source, active, queryName, keyName, onPin } = props;
  const { value: all = null } = useLoaded(async (): Promise<PerToken> => {
    const { layer, head } = map;
    const read = (name: "entropy" | "distance" | "max") =>
      ofHead(source, `${place}/${name}`, layer[name], head, layer.queries);
    const [entropy, distance, max, received] = await Promise.all([
      read("entropy"),
      read("distance"),
      read("max"),
      map.receivedBy(source, place),
    ]);
    return { entropy, distance, max, received };
  }, [map, place, source]);
  const { query, key } = active;
  const looksAt = useExact(source, place, map.head, alone ? query : null, "query", out?.keys);
  const seenBy = useExact(source, place, map.head, alone ? key : null, "key", out?.queries);
  const idle = query === null && key === null;
  return (
    <div class="ch-numbers">
      {idle ? (
        <MostReceived all={all} map={map} out={out} alone={alone} keyName={keyName} onPin={onPin} />
      ) : (
        <>
          <div>
            {query !== null && (
              <Links
                title={titleOf(queryName, query, "looks at")}
                links={
                  looksAt
                    ? exactLinks(looksAt, (at, weight) => ({ query, key: at, weight }))
                    : map.looksAt(query, SHOWN)
                }
                token={(link) => tokenName(keyName, link.key)}
                error={(link) => (looksAt ? 0 : map.error(link.weight))}
                onPin={onPin}
                empty={
                  Number.isNaN(all?.max[query])
                    ? "Its weights are no numbers."
                    : looksAt || map.at || map.linkKeys.length
                      ? "nothing"
                      : "not kept to the single token"
                }
              />
            )}
            {query !== null && all && alone && (
              <dl class="ch-facts">
                <Fact name="entropy">{quantity(all.entropy[query]!, "nats")}</Fact>
                {!map.layer.cross && (
                  <Fact name="mean distance">{quantity(all.distance[query]!, "tokens")}</Fact>
                )}
                {!looksAt && !map.at && map.linkKeys.length === 0 && (
                  <Fact name="largest weight">{percent(all.max[query]!)}</Fact>
                )}
              </dl>
            )}
          </div>
          <div>
            {key !== null && (
              <Links
                title={titleOf(keyName, key, "is looked at by")}
                links={
                  seenBy
                    ? exactLinks(seenBy, (at, weight) => ({ query: at, key, weight }))
                    : map.seenBy(key, SHOWN)
                }
                token={(link) => tokenName(queryName, link.query)}
                error={(link) => (seenBy ? 0 : map.error(link.weight))}
                onPin={onPin}
                empty={seenBy || map.at ? "nobody" : "nobody’s strongest links"}
              />
            )}
            {key !== null && all && (
              <dl class="ch-facts">
                <Fact name="received">
                  {`${number(all.received[key]!)}, the sum of its weights`}
                  {sharing(map) > 1 && ` in the ${sharing(map)} heads that share this key`}
                </Fact>
              </dl>
            )}
          </div>
        </>
      )}
    </div>
  );
}

/** How many heads share the keys of a head. */
function sharing({ layer }: HeadMap): number {
  return layer.heads / layer.kv_heads;
}

/** The numbers of a token from query and key, where the source has them; null until they are there. */
function useExact(
  source: Source,
  layer: number,
  head: number,
  at: number | null,
  side: "query" | "key",
  out: Uint8Array | undefined,
): TokenNumbers | null {
  const { value, fresh } = useLoaded(
    (abort) => (at === null ? null : (source.token?.(layer, head, at, side, abort) ?? null)),
    [source, layer, head, at, side],
  );
  // Given up, the page's own numbers stay.
  const found = (fresh && value) || null;
  return out && found ? { ...found, links: found.links.filter(([at]) => !out[at]) } : found;
}

function exactLinks({ links }: TokenNumbers, link: (at: number, weight: number) => Link): Link[] {
  return links.slice(0, SHOWN).map(([at, weight]) => link(at, weight ?? NaN));
}

/** A token's number, and how it is written. */
function tokenName(token: (at: number) => string, at: number) {
  return { at, name: short(token(at), 14) };
}

function titleOf(token: (at: number) => string, at: number, does: string): string {
  return `${at} ${tokenName(token, at).name} ${does}`;
}

interface LinksProps {
  title: string;
  links: Link[];
  token: (link: Link) => { at: number; name: string };
  /** How far a weight may be from the true one. */
  error: (link: Link) => number;
  onPin: (point: Point) => void;
  empty: string;
}

function Links({ title, links: all, token, error, onPin, empty }: LinksProps) {
  const links = all.filter(({ weight }) => !(weight < LEAST));
  return (
    <section>
      <h3>
        <bdi>{title}</bdi>
      </h3>
      {links.length === 0 ? (
        <p class="ch-remark">{all.length ? `nothing above ${percent(LEAST)}` : empty}</p>
      ) : (
        <Bars
          kind={links.some((link) => error(link) >= ROUNDED) ? " ch-rounded" : ""}
          bars={links.map((link) => ({
            key: `${link.query}/${link.key}`,
            ...token(link),
            share: link.weight,
            words: within(link.weight, error(link)),
            onClick: () => onPin({ query: link.query, key: link.key }),
          }))}
        />
      )}
    </section>
  );
}

interface MostProps {
  all: PerToken | null;
  map: HeadMap;
  out: LeftOut | null;
  alone: boolean;
  keyName: (key: number) => string;
  onPin: (point: Point) => void;
}

function MostReceived({ all, map, out, alone, keyName, onPin }: MostProps) {
  if (!all) return <section />;
  const total = all.received.reduce((sum, each) => sum + each, 0);
  if (Number.isNaN(total)) {
    return (
      <p class="ch-remark">
        Some weights of this head are no numbers, so that it has no shares. Point at the map.
      </p>
    );
  }
  const group = sharing(map);
  const found = strongest(10, all.received.length, (key) =>
    out?.keys[key] ? 0 : all.received[key]! / (total || 1),
  ).filter(([, part]) => part >= LEAST);
  return (
    <section>
      <h3>Most received</h3>
      <Bars
        bars={found.map(([key, part]) => ({
          key,
          ...tokenName(keyName, key),
          share: part / found[0]![1],
          words: percent(part),
          onClick: () => onPin({ query: null, key }),
        }))}
      />
      <p class="ch-remark">
        {found.length === 0 && `No key receives ${percent(LEAST)}. `}Share of all attention of{" "}
        {!alone
          ? "these heads"
          : group > 1
            ? `the ${group} heads that share these keys`
            : "this head"}
        . Point at a token, or at the map.
      </p>
    </section>
  );
}
