// Vectors of width 2 as arrows that are dragged: scores as projections onto a query, and the context in the hull
// of the values.
import { useRef, useState } from "preact/hooks";
import { number } from "../views/steps/model";
import type { Touched } from "./core";
import type { FigureData } from "./model";
import { foot, hull, type Point, reach, rounded, turned } from "./plane";

const HALF = 130;
const ROOM = 24;

interface Props {
  data: FigureData;
  stages: Map<string, Touched>;
  /** Puts a row of a stage elsewhere; `going` while a drag is under way. */
  move: (stage: string, row: number, to: Point, going: boolean) => void;
}

export function Plane({ data, stages, move }: Props) {
  const [row, setRow] = useState(Math.min(1, data.tokens.length - 1));
  const of = (name: string, at: number): Point => {
    const stage = stages.get(name)!;
    return [stage.at(at, 0), stage.at(at, 1)];
  };
  const keys = data.source_tokens.map((_, at) => of("key", at));
  const query = of("query", row);
  const weights = stages.get("weights")!;
  const shares = keys.map((_, at) => weights.at(row, at));
  // What the figure leaves out may not be known yet to whoever reads it.
  const shown = (...names: string[]) => names.some((name) => data.show.includes(name));
  const flat = shown("value", "context") && stages.get("value")!.columns === 2;
  const values = flat ? keys.map((_, at) => of("value", at)) : null;
  return (
    <section class="panel plane" data-stage="plane">
      <p class="name">
        plane <span>scores as projections onto the query</span>
      </p>
      <label>
        query
        <select value={row} onChange={(event) => setRow(Number(event.currentTarget.value))}>
          {data.tokens.map((word, at) => (
            <option key={at} value={at}>
              {word}
            </option>
          ))}
        </select>
      </label>
      <div class="planes">
        <Axes what="query and keys" points={[query, ...keys]}>
          {(draw) => (
            <>
              <line class="along" {...draw.along(query)} />
              {keys.map((key, at) => (
                <line key={at} class="drop" {...draw.line(key, foot(key, query))} />
              ))}
              {keys.map((key, at) => (
                <Arrow
                  key={at}
                  {...{ draw, move, row: at, point: key, share: shares[at]! }}
                  stage="key"
                  word={data.source_tokens[at]!}
                  editable={data.edit.includes("key")}
                />
              ))}
              <Arrow
                {...{ draw, move, row, point: query, share: 1 }}
                stage="query"
                word={data.tokens[row]!}
                editable={data.edit.includes("query")}
              />
            </>
          )}
        </Axes>
        {shown("weights", "context") && (
          <ul class="bars" aria-label={`weights of ${data.tokens[row]}`}>
            {shares.map((share, at) => (
              <li key={at}>
                <span>{data.source_tokens[at]}</span>
                <span class="bar" style={{ "--share": `${100 * (share || 0)}%` }} />
                <span>{number(share)}</span>
              </li>
            ))}
          </ul>
        )}
        {values && (
          <Axes what="values and context" points={values}>
            {(draw) => (
              <>
                <polygon
                  class="hull"
                  points={hull(values)
                    .map((each) => draw.place(each).join(","))
                    .join(" ")}
                />
                {values.map((value, at) => (
                  <Arrow
                    key={at}
                    {...{ draw, move, row: at, point: value, share: shares[at]! }}
                    stage="value"
                    word={data.source_tokens[at]!}
                    editable={data.edit.includes("value")}
                  />
                ))}
                <Spot draw={draw} point={of("context", row)} />
              </>
            )}
          </Axes>
        )}
      </div>
    </section>
  );
}

type Ends = Record<"x1" | "y1" | "x2" | "y2", number>;

interface Drawing {
  place: (point: Point) => Point;
  back: (x: number, y: number) => Point;
  line: (from: Point, to: Point) => Ends;
  /** The line through 0 and a point, as far as there is room. */
  along: (point: Point) => Ends;
}

interface AxesProps {
  what: string;
  points: Point[];
  children: (draw: Drawing) => preact.ComponentChildren;
}

function Axes({ what, points, children }: AxesProps) {
  // What an arrow reaches while it is dragged must not change under the pointer.
  const most = useRef(0);
  most.current = Math.max(most.current, reach(points));
  const unit = HALF / most.current;
  const place = ([x, y]: Point): Point => [rounded(x * unit), rounded(-y * unit)];
  const line = (from: Point, to: Point): Ends => {
    const [[x1, y1], [x2, y2]] = [place(from), place(to)];
    return { x1, y1, x2, y2 };
  };
  const draw: Drawing = {
    place,
    line,
    along: ([x, y]) => {
      const factor = most.current / (Math.hypot(x, y) || 1);
      return line([-x * factor, -y * factor], [x * factor, y * factor]);
    },
    back: (x, y) => [rounded(x / unit), rounded(-y / unit)],
  };
  const size = HALF + ROOM;
  return (
    <svg viewBox={`${-size} ${-size} ${2 * size} ${2 * size}`} role="group" aria-label={what}>
      <line class="axis" x1={-HALF} x2={HALF} />
      <line class="axis" y1={-HALF} y2={HALF} />
      <text class="end" x={HALF} y={13}>
        {most.current}
      </text>
      <text x={4} y={-HALF - 4}>
        {most.current}
      </text>
      {children(draw)}
    </svg>
  );
}

interface ArrowProps {
  draw: Drawing;
  move: Props["move"];
  stage: string;
  row: number;
  word: string;
  point: Point;
  share: number;
  editable: boolean;
}

/** An arrow to drag by its tip; by keys it is turned and stretched. */
function Arrow({ draw, move, stage, row, word, point, share, editable }: ArrowProps) {
  const dragged = useRef<"no" | "down" | "going">("no");
  if (!point.every(Number.isFinite)) return null;
  const [x, y] = draw.place(point);
  const text = `${number(point[0])}, ${number(point[1])}`;
  const degrees = Math.round((Math.atan2(point[1], point[0]) * 180) / Math.PI);
  const onPointerMove = (event: PointerEvent) => {
    if (dragged.current === "no") return;
    const svg = (event.currentTarget as SVGElement).ownerSVGElement!;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(
      svg.getScreenCTM()!.inverse(),
    );
    move(stage, row, draw.back(at.x, at.y), dragged.current === "going");
    dragged.current = "going";
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const turns = { ArrowLeft: 5, ArrowRight: -5 }[event.key];
    const factor = { ArrowUp: 1.1, ArrowDown: 1 / 1.1 }[event.key];
    if (event.ctrlKey || event.altKey || event.metaKey || (!turns && !factor)) return;
    move(stage, row, turned(point, turns ?? 0, factor ?? 1), false);
    event.preventDefault();
  };
  const touched = editable && {
    tabindex: 0,
    role: "slider" as const,
    "aria-label": `${stage} ${word}`,
    "aria-valuemin": -180,
    "aria-valuemax": 180,
    "aria-valuenow": degrees,
    "aria-valuetext": text,
    onKeyDown,
    onPointerMove,
    onPointerDown: (event: PointerEvent) => {
      (event.currentTarget as Element).setPointerCapture(event.pointerId);
      dragged.current = "down";
    },
    onLostPointerCapture: () => {
      dragged.current = "no";
    },
  };
  const lean = x < 0 ? "end" : "";
  return (
    <g
      class={`arrow ${stage} ${editable ? "free" : ""}`}
      style={{ "--share": Math.max(0.25, share || 0) }}
      {...touched}
    >
      <line x2={x} y2={y} />
      <circle cx={x} cy={y} r={4} />
      {editable && <circle class="handle" cx={x} cy={y} r={14} />}
      <text class={lean} x={x + (x < 0 ? -7 : 7)} y={y + (y < 0 ? -5 : 13)}>
        {stage === "query" ? `query ${word}` : word}
      </text>
    </g>
  );
}

function Spot({ draw, point }: { draw: Drawing; point: Point }) {
  if (!point.every(Number.isFinite)) return null;
  const [x, y] = draw.place(point);
  return (
    <g class="spot">
      <circle cx={x} cy={y} r={6} />
      <text x={x + 9} y={y + 4}>
        context
      </text>
    </g>
  );
}
