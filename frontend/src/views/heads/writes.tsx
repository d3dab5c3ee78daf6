// The tokens that a head raises and lowers at a query.

import { Bars } from "../../shared/bars";
import { Details } from "../../shared/details";
import { names } from "../../shared/labels";
import { useLoaded } from "../../shared/loaded";
import type { Signal } from "../../shared/signals";
import type { Source, Written } from "../../source";
import type { HeadsData } from "./data";
import type { Chosen } from "./names";

/** The steps that numbers are rounded to, of either sign (drawing/page/written.py). */
const STEPS = 127;

/** What a head writes at a query; null where nothing is known of it. */
export async function writtenOf(
  data: HeadsData,
  source: Source,
  { layer, head }: Chosen,
  query: number,
): Promise<Written | null> {
  const { top, words } = data.writes!;
  if (!data.layers[layer]!.writes) return null;
  const [tokens, codes, most] = await Promise.all(
    [`${head}/written`, `${head}/above`, "written-most"].map((name) =>
      source.array(`${layer}/${name}`),
    ) as [Promise<Uint16Array>, Promise<Uint8Array>, Promise<Float32Array>],
  );
  const largest = most[head * data.layers[layer]!.queries + query]!;
  const side = (first: number) => {
    const from = (2 * query + first) * top;
    return Array.from(tokens.subarray(from, from + top)).flatMap((token, at): [string, number][] =>
      token ? [[words[token - 1]!, ((codes[from + at]! - STEPS - 1) / STEPS) * largest]] : [],
    );
  };
  const found = { raised: side(0), lowered: side(1) };
  return found.raised.length ? found : null;
}

interface WritesProps {
  data: HeadsData;
  source: Source;
  chosen: Chosen;
  query: number;
  /** The query as a word. */
  name: string;
  open: Signal<boolean>;
}

export function Writes({ data, source, chosen, query, name, open }: WritesProps) {
  const { layer, head } = chosen;
  const shown = open.value;
  const { value, failed, fresh } = useLoaded(
    () => (shown ? writtenOf(data, source, { layer, head }, query) : null),
    [data, source, layer, head, query, shown],
  );
  const most = value ? Math.max(...[...value.raised, ...value.lowered].map(size)) : 1;
  const named = names(
    [...(value?.raised ?? []), ...(value?.lowered ?? [])].map(([token]) => token),
  );
  const list = (title: string, tokens: Written["raised"], first: number) => (
    <section>
      <h3>{title}</h3>
      <Bars
        bars={tokens.map((each, at) => ({
          key: at,
          name: named[first + at]!,
          share: size(each) / most,
          less: each[1]! < 0,
          words: written(each[1]),
        }))}
      />
    </section>
  );
  return (
    <Details
      kind=" ch-writes"
      open={open}
      title={
        <>
          What it writes at <bdi>{name}</bdi>
        </>
      }
      ready={fresh}
    >
      {!fresh ? (
        <p class="ch-remark">It is being computed.</p>
      ) : value && !failed ? (
        <>
          <div>
            {list("Raises", value.raised, 0)}
            {list("Lowers", value.lowered, value.raised.length)}
          </div>
          <p class="ch-remark">
            What the head adds to the logit of a token by itself, less its mean over all tokens.
          </p>
        </>
      ) : (
        <p class="ch-remark">
          {failed instanceof Error ? failed.message : "It is not known for this query."}
        </p>
      )}
    </Details>
  );
}

function size([, above]: [string, number | null]): number {
  return Math.abs(above ?? 0);
}

function written(above: number | null): string {
  if (above === null) return "no number";
  const digits = Math.max(0, Math.min(4, 1 - Math.floor(Math.log10(Math.abs(above) || 1))));
  return `${above < 0 ? "−" : "+"}${Math.abs(above).toFixed(digits)}`;
}
