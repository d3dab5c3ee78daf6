// Why a weight is what it is, drawn: query and key by dimension, their product, and the softmax.

import { cssSigned } from "../../shared/colour";
import { Details } from "../../shared/details";
import { useLoaded } from "../../shared/loaded";
import { useLook } from "../../shared/look";
import { percent } from "../../shared/scale";
import type { Signal } from "../../shared/signals";
import type { PairStages, Source } from "../../source";
import type { HeadMap, HeadsData } from "./data";
import { Fact } from "./facts";
import type { Chosen } from "./names";
import { partsOf, stagesOf } from "./why";

interface WhyProps {
  data: HeadsData;
  source: Source;
  chosen: Chosen;
  map: HeadMap;
  query: number;
  key_: number;
  open: Signal<boolean>;
}

export function Why({ data, source, chosen, map, query, key_, open }: WhyProps) {
  const { layer, head } = chosen;
  const shown = open.value;
  const { value, failed, fresh } = useLoaded(
    (abort) => (shown ? stagesOf(data, source, { layer, head }, map, query, key_, abort) : null),
    [data, source, layer, head, map, query, key_, shown],
  );
  const stages = fresh ? (failed ? null : value) : undefined;
  const weight = map.weight(query, key_);
  const title = `Why ${weight === null || weight < 0 ? "" : percent(weight)}?`;
  return (
    <Details open={open} title={title} ready={stages !== undefined}>
      {stages && <Stages stages={stages} />}
      {stages === null && <p class="ch-remark">Query and key of this head are not known.</p>}
    </Details>
  );
}

const [ROW, BARS, NAME] = [14, 56, 96];

function Stages({ stages }: { stages: PairStages }) {
  const { query, key, score, scale, scaled, capped, bias, masked, logsumexp, weight } = stages;
  const hidden = masked === null && weight === 0;
  const dark = useLook().theme.value;
  const parts = partsOf(stages);
  const most = largest(parts.map(({ by }) => by));
  const wide = Math.max(2, Math.min(14, 560 / Math.max(1, query.length)));
  const cells = (values: (number | null)[], top: number) => {
    const end = largest(values);
    return values.map((value, at) => (
      <rect
        key={`${top}/${at}`}
        x={NAME + at * wide}
        y={top}
        width={wide - (wide > 4 ? 1 : 0.25)}
        height={ROW}
        fill={cssSigned(finite(value) / end, dark)}
      >
        <title>{`dimension ${at}: ${written(value)}`}</title>
      </rect>
    ));
  };
  const middle = 2 * ROW + 14 + BARS / 2;
  return (
    <>
      <svg
        width={NAME + wide * query.length}
        height={middle + BARS / 2 + 2}
        role="img"
        aria-label={`Query and key over ${query.length} dimensions, and what each adds to the score`}
      >
        <text x="0" y={ROW - 3}>
          query
        </text>
        {cells(query, 0)}
        <text x="0" y={2 * ROW + 1}>
          × key
        </text>
        {cells(key, ROW + 4)}
        <text x="0" y={middle + 4}>
          = adds to it
        </text>
        {parts.map(({ at, by }) => {
          const tall = ((Math.abs(finite(by)) / most) * BARS) / 2;
          return (
            <rect
              key={at}
              x={NAME + at * wide}
              y={by < 0 ? middle : middle - tall}
              width={wide - (wide > 4 ? 1 : 0.25)}
              height={Math.max(0.5, tall)}
              class={by < 0 ? "ch-less" : ""}
            >
              <title>{`dimension ${at}: ${written(by)}`}</title>
            </rect>
          );
        })}
      </svg>
      <dl class="ch-facts">
        <Fact name="query · key">{written(score)}</Fact>
        <Fact name={`× ${written(scale)}`}>{written(scaled)}</Fact>
        {capped !== undefined && <Fact name="after the softcap">{written(capped)}</Fact>}
        {hidden ? (
          <Fact name="mask">hides it: 0 %</Fact>
        ) : (
          <>
            {bias !== undefined && (
              <Fact name="+ bias">{`${written(bias)} = ${written(masked)}`}</Fact>
            )}
            <Fact name="softmax">
              {`exp(${written(masked)} − ${written(logsumexp)}) = ${percent(weight ?? NaN)}`}
            </Fact>
          </>
        )}
      </dl>
      <p class="ch-remark">
        {parts.length > 1 &&
          `Most of the score: ${parts
            .slice(0, 3)
            .map(({ at, by }) => `dimension ${at} adds ${written(by)}`)
            .join(", ")}. `}
        {!hidden &&
          `${written(logsumexp)} is the logsumexp: the logarithm of the sum of exp(score) over all keys.`}
      </p>
    </>
  );
}

/** What is no number is drawn as 0. */
function finite(value: number | null): number {
  return Number.isFinite(value) ? value! : 0;
}

function largest(values: (number | null)[]): number {
  return Math.max(1e-30, ...values.map((each) => Math.abs(finite(each))));
}

function written(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return "no number";
  return String(Number(value.toPrecision(4))).replace("-", "−");
}
