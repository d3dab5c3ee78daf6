// Which heads look from here to there? The answer of every head to what is pinned.

import { Bars } from "../../shared/bars";
import { short } from "../../shared/labels";
import { useLoaded } from "../../shared/loaded";
import type { Point } from "../../shared/map";
import { ROUNDED, within } from "../../shared/scale";
import type { Source } from "../../source";
import type { HeadMap, HeadsData, LayerData, Link } from "./data";
import { filtered, type Kind, leftOut } from "./filter";
import { type Chosen, headsOf, same, shortName } from "./names";
import { RunNames } from "./run_names";
import { headMap } from "./tiles";
import { nameOf } from "./words";

/** The link that a head has from a query, to a key, or between both, and how far it may be off. */
export interface Answer extends Chosen {
  link: Link;
  error: number;
}

export interface Question {
  query: number | null;
  key: number | null;
}

const SHOWN = 8;

/** What is asked by what is pinned: of a token where it looks. */
export function questionOf({ query, key, token }: Point): Question | null {
  if (query === null && key === null) return null;
  return token && query !== null ? { query, key: null } : { query, key };
}

/** A head's answer: the weight of the pair, or the largest one of the query, or to the key; null where
 * nothing is known of it. */
export function answerOf(map: HeadMap, { query, key }: Question): Link | null {
  if (query !== null && key !== null) {
    const weight = map.weight(query, key);
    return weight === null || !(weight >= 0) ? null : { query, key, weight };
  }
  return (query !== null ? map.looksAt(query, 1) : map.seenBy(key!, 1))[0] ?? null;
}

type Texts = Pick<LayerData, "query" | "key">;

/** The heads of the same texts, which can be asked. */
function askedOf(data: HeadsData, about: Texts, question: Question): Chosen[] {
  return data.layers.flatMap((layer, place) =>
    layer.query.text === about.query.text &&
    layer.key.text === about.key.text &&
    (question.query ?? 0) < layer.queries &&
    (question.key ?? 0) < layer.keys
      ? headsOf(data, place)
      : [],
  );
}

/** The answers of all heads of the same texts, the largest first. */
export async function askHeads(
  data: HeadsData,
  source: Source,
  about: Texts,
  question: Question,
  without: readonly Kind[] = [],
): Promise<Answer[]> {
  const asked = askedOf(data, about, question);
  const maps = await Promise.all(
    asked.map(({ layer, head }) => headMap(source, layer, data.layers[layer]!, head)),
  );
  // Of a pair that was asked for by name nothing is left out.
  const pair = question.query !== null && question.key !== null;
  const out = pair ? [] : data.layers.map((layer) => leftOut(data, layer, without));
  const found = asked.flatMap((chosen, at) => {
    const whole = maps[at]!;
    const link = answerOf(filtered(whole, out[chosen.layer] ?? null, 0), question);
    return link ? [{ ...chosen, link, error: whole.error(link.weight) }] : [];
  });
  return found.sort((a, b) => b.link.weight - a.link.weight);
}

/** What was asked last, and what all heads answer. */
export interface Answered {
  about: LayerData;
  question: Question;
  answers: Answer[];
}

/** The answers to what is pinned; null while nothing is. Those to the last question stay until the next are there. */
export function useAnswers(
  data: HeadsData,
  source: Source,
  about: LayerData,
  pinned: Point,
  without: readonly Kind[],
): Answered | null {
  const question = questionOf(pinned);
  const load = async (question: Question) => {
    const answers = await askHeads(data, source, about, question, without);
    return { about, question, answers };
  };
  const of = [about, question?.query, question?.key, without];
  const { value } = useLoaded(() => question && load(question), of);
  return (question && value) || null;
}

interface AnswersProps {
  data: HeadsData;
  answered: Answered;
  chosen: Chosen;
  choose: (chosen: Chosen) => void;
}

/** The heads that answer most strongly, as a list to choose from. */
export function Answers({ data, answered, chosen, choose }: AnswersProps) {
  const { about, question, answers } = answered;
  const { query, key } = question;
  const [queryName, keyName] = [nameOf(data, about, "query"), nameOf(data, about, "key")];
  const name = (token: string) => <b>{short(token, 14)}</b>;
  const every = data.layers.reduce((sum, { rows }) => sum + rows.length, 0);
  const rest = every - answers.length;
  return (
    <section class="ch-answers" aria-label="Heads by what is pinned">
      <p class="ch-caption">
        <bdi>
          {query !== null && key !== null ? (
            <>
              Heads in which {name(queryName(query))} looks at {name(keyName(key))}
            </>
          ) : query !== null ? (
            <>
              Heads by the strongest link of {name(queryName(query))}; Shift and a click on another
              token ask for one link
            </>
          ) : (
            <>Heads by the strongest link to {name(keyName(key!))}</>
          )}
        </bdi>
      </p>
      <RunNames data={data} />
      <Bars
        kind={`${query !== null && key !== null ? "" : " ch-named"}${answers.some((each) => each.error >= ROUNDED) ? " ch-rounded" : ""}`}
        bars={answers.slice(0, SHOWN).map(({ layer, head, link, error }) => ({
          key: `${layer}/${head}`,
          name: shortName(data, { layer, head }),
          more:
            key === null
              ? `→ ${short(keyName(link.key), 10)}`
              : query === null && `← ${short(queryName(link.query), 10)}`,
          share: link.weight,
          words: within(link.weight, error),
          pressed: same({ layer, head }, chosen),
          onClick: () => choose({ layer, head }),
        }))}
      />
      {rest > 0 && (
        <p class="ch-remark">
          {rest === every ? "No head" : `${rest} of ${every} heads`}
          {about.weights ? ": hidden, or of other texts." : ": not among its strongest links."}
        </p>
      )}
    </section>
  );
}
