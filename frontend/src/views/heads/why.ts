// How a weight comes about: from query and key to the softmax, stage by stage.
import type { PairStages, Source } from "../../source";
import type { HeadMap, HeadsData } from "./data";
import type { Chosen } from "./names";

/** The stages of a pair, from the page's own query and key, or from the kernel's; null where there are
 * none. */
export async function stagesOf(
  data: HeadsData,
  source: Source,
  { layer, head }: Chosen,
  map: HeadMap,
  query: number,
  key: number,
  abort: AbortSignal,
): Promise<PairStages | null> {
  const about = data.layers[layer]!;
  if (!about.why) return (await source.pair?.(layer, head, query, key, abort)) ?? null;
  const { dim, scale, softcap, bias, sinks } = about.why;
  const group = about.heads / about.kv_heads;
  const array = async (head: number, name: string) => source.array(`${layer}/${head}/${name}`);
  const [queries, keys, biases] = await Promise.all([
    array(head, "query"),
    array(Math.floor(head / group), "key"),
    bias ? array(head, "bias") : null,
  ]);
  const own = Array.from(queries.subarray(query * dim, (query + 1) * dim) as Float32Array);
  const vector = (at: number) => keys.subarray(at * dim, (at + 1) * dim) as Float32Array;
  const capped = (scaled: number) => (softcap ? softcap * Math.tanh(scaled / softcap) : scaled);
  const score = (at: number) => vector(at).reduce((sum, each, n) => sum + each * own[n]!, 0);
  const masked = (at: number) => {
    if ((map.weight(query, at) ?? 0) < 0) return Number.NEGATIVE_INFINITY;
    return capped(scale * score(at)) + (biases?.[query * about.keys + at] ?? 0);
  };
  const row = Array.from({ length: about.keys }, (_, at) => masked(at));
  const logsumexp = totalOf(sinks ? [...row, sinks[head]!] : row);
  return {
    query: own,
    key: Array.from(vector(key)),
    score: score(key),
    scale,
    scaled: scale * score(key),
    ...(softcap && { capped: capped(scale * score(key)) }),
    ...(biases && { bias: biases[query * about.keys + key]! }),
    masked: Number.isFinite(row[key]!) ? row[key]! : null,
    logsumexp,
    weight: row[key] === Number.NEGATIVE_INFINITY ? 0 : Math.exp(row[key]! - logsumexp),
  };
}

function totalOf(scores: readonly number[]): number {
  const most = Math.max(...scores);
  if (!Number.isFinite(most)) return most;
  return most + Math.log(scores.reduce((sum, each) => sum + Math.exp(each - most), 0));
}

/** What each dimension adds to the dot product, the largest part first, and before it what is no number. */
export function partsOf({ query, key }: PairStages): { at: number; by: number }[] {
  const size = ({ by }: { by: number }) => (Number.isFinite(by) ? Math.abs(by) : Infinity);
  return query
    .map((each, at) => ({ at, by: (each ?? NaN) * (key[at] ?? NaN) }))
    .sort((a, b) => (size(a) === size(b) ? 0 : size(b) - size(a)));
}
