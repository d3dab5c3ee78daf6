// A sound whose moments are keys: its waveform over seconds, and below it what a head listens to.

import { useEffect, useRef } from "preact/hooks";
import { css } from "../../shared/colour";
import { useLoaded } from "../../shared/loaded";
import { useLook } from "../../shared/look";
import type { Point } from "../../shared/map";
import { percent, placeOf } from "../../shared/scale";
import type { ReadonlySignal } from "../../shared/signals";
import type { Source } from "../../source";
import type { HeadMap, HeadsData, LayerData } from "./data";
import { lightOf, looksAtItself } from "./photo";

/** When keys are (drawing/page/media.py). */
export interface SoundData {
  /** The length of the audio. */
  seconds: number;
  keys: number;
  /** So many of them begin before the audio ends. */
  heard: number;
  wave: boolean;
}

/** The sound of a layer: its keys are the moments; null for a layer of other tokens. */
export function soundOf(data: HeadsData, layer: LayerData): SoundData | null {
  const { sound } = data;
  return sound && layer.weights && layer.keys === sound.keys ? sound : null;
}

interface SoundProps {
  source: Source;
  sound: SoundData;
  map: HeadMap | null;
  active: ReadonlySignal<Point>;
  /** How what a query is called. */
  queryName: (query: number) => string;
  /** The point of a key. */
  pointOf: (key: number) => Point;
  onHover: (point: Point) => void;
  onPin: (point: Point) => void;
}

const NOWHERE: Point = { query: null, key: null };

/** Pixels: of the canvas, and of the waveform in it. */
const [WIDE, TALL, WAVE] = [1200, 200, 140];

const TICKS = [0, 0.25, 0.5, 0.75, 1];

export function SoundView(props: SoundProps) {
  const { source, sound, map, active, queryName, pointOf, onHover, onPin } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const { heard, seconds } = sound;
  const { value: times } = useLoaded(() => source.array("times"), [source]);
  const { value: wave } = useLoaded(
    () => (sound.wave ? source.array("wave") : null),
    [source, sound],
  );
  const { query, key } = active.value;
  const { scale, theme } = useLook();
  const [dark, kind] = [theme.value, scale.value];
  const light = map && lightOf(map, { skip: 0 }, query);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the light follows from the map and the query.
  useEffect(() => {
    if (!times || !light || !map) return;
    const context = canvas.current!.getContext("2d")!;
    const at = (key: number) => (WIDE * Math.min(seconds, times[key]!)) / seconds;
    context.clearRect(0, 0, WIDE, TALL);
    const most = light.subarray(0, heard).reduce((a, b) => Math.max(a, b), 0);
    for (let each = 0; each < heard; each++) {
      context.fillStyle = css(placeOf(light[each]!, most, kind), dark);
      context.fillRect(at(each), WAVE, at(each + 1) - at(each) + 0.5, TALL - WAVE);
    }
    const ink = dark === "dark";
    context.fillStyle = ink ? "#aab2bd" : "#59636e";
    const pairs = (wave?.length ?? 0) / 2;
    for (let pair = 0; pair < pairs; pair++) {
      const [low, high] = [wave![pair]!, wave![pairs + pair]!].map(
        (byte) => WAVE * (1 - byte / 255),
      ) as [number, number];
      context.fillRect((pair * WIDE) / pairs, high, WIDE / pairs, Math.max(1, low - high));
    }
    context.fillStyle = ink ? "#f5a26b" : "#b3430b";
    for (const own of [key, looksAtItself(map.layer) ? query : null]) {
      if (own !== null) context.fillRect(at(own), 0, Math.max(2, at(own + 1) - at(own)), TALL);
    }
  }, [times, wave, map, query, key, dark, kind]);

  const at = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const second = (seconds * (event.clientX - box.left)) / box.width;
    const after = times?.findIndex((time) => time > second) ?? 1;
    return pointOf(Math.max(0, Math.min(heard, after) - 1));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const now = active.peek().key;
    if (step) onHover(pointOf(Math.max(0, Math.min(heard - 1, (now ?? -step) + step))));
    else if ((event.key === "Enter" || event.key === " ") && now !== null) onPin(pointOf(now));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const behind = light?.slice(heard).reduce((a, b) => a + b, 0) ?? 0;
  return (
    <div class="ch-sound">
      <canvas
        ref={canvas}
        width={WIDE}
        height={TALL}
        tabIndex={0}
        role="application"
        aria-roledescription="sound"
        aria-label="The sound, and below it where it is listened to. Arrow keys go from moment to moment, Enter pins."
        onPointerMove={(event) => event.pointerType === "mouse" && onHover(at(event))}
        onPointerLeave={() => onHover(NOWHERE)}
        onBlur={() => onHover(NOWHERE)}
        onClick={(event) => onPin(at(event))}
        onKeyDown={onKeyDown}
      />
      <div class="ch-legend-ticks" aria-hidden="true">
        {TICKS.map((part) => (
          <span key={part}>{(part * seconds).toFixed(seconds < 4 ? 2 : 1)} s</span>
        ))}
      </div>
      <p class="ch-remark">
        {query === null
          ? "When all queries listen, on average"
          : `When ${queryName(query)} listens`}
        {behind > 0.001 && `; ${percent(behind)} of it after the end of the sound`}.
      </p>
    </div>
  );
}
