// A head as a small map, with its answer to what is pinned.

import { useEffect, useMemo, useRef } from "preact/hooks";
import { css } from "../../shared/colour";
import { useLook } from "../../shared/look";
import { paintCells, paintValues } from "../../shared/map";
import { number, percent, placeOf } from "../../shared/scale";
import type { Source } from "../../source";
import { type HeadsData, type RoundedMap, type Row, table } from "./data";
import { score, shortName, titleOf } from "./names";
import { lightOf, mostOf, paintPhotos, photosOf, picture } from "./photo";
import { hueOf } from "./several";
import { headMap } from "./tiles";

interface SmallProps {
  data: HeadsData;
  source: Source;
  layer: number;
  head: number;
  row: Row;
  /** The query whose attention a picture shows. */
  query: number | null;
  named: boolean;
  /** What it answers to what is pinned, -1 for nothing; null while nothing is. */
  weight: number | null;
  /** The largest that any head answers. */
  most: number;
  /** It is how far the head is from its partner. */
  apart: boolean;
  chosen: boolean;
  other: boolean;
  /** Its place among several that are shown, -1 for none, and whether these have colours. */
  hue: number;
  coloured: boolean;
  choose: (more: boolean) => void;
}

export function Small(props: SmallProps) {
  const { data, source, layer, head, row, query, weight } = props;
  const { named, most, apart, chosen, other, hue, coloured, choose } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const about = data.layers[layer]!.small;
  const colours = useLook().theme.value;
  const layerData = data.layers[layer]!;
  const photos = useMemo(() => photosOf(data, layerData), [data, layerData]);
  const asked = photos.length ? query : null;
  useEffect(() => {
    let gone = false;
    const drawPhotos = async () => {
      const images = await Promise.all(photos.map((photo) => picture(source, photo)));
      const light = lightOf(await headMap(source, layer, layerData, head), asked);
      if (!gone && canvas.current)
        paintPhotos(canvas.current, images, photos, light, mostOf(light, photos), colours, 112);
    };
    const drawMap = async ({ shape, top, ...steps }: RoundedMap) => {
      const [height, width] = shape;
      const codes = await source.array(`${layer}/small`);
      const values = table(steps, top[head]!);
      const own = codes.subarray(head * height * width, (head + 1) * height * width);
      const shares = Float32Array.from(own as Uint8Array, (code) => values[code]!);
      if (!gone && canvas.current)
        paintCells(canvas.current, shape, (pixels) =>
          paintValues(pixels, shares, top[head]!, colours, "root"),
        );
    };
    // A picture that cannot be read leaves the maps.
    if (photos.length) drawPhotos().catch(() => undefined);
    else if (about) void drawMap(about);
    return () => {
      gone = true;
    };
  }, [source, about, photos, layerData, layer, head, asked, colours]);
  const name = titleOf(data, { layer, head });
  const numbers = [
    weight !== null &&
      (weight < 0
        ? "not known"
        : `${percent(weight)} ${apart ? "is elsewhere" : "of what is pinned"}`),
    row.role && `${row.role} ${Math.round(score(row) * 100)} %`,
    row.entropy !== null && `entropy ${number(row.entropy)} nats`,
    row.distance !== null && `distance ${number(row.distance)} tokens`,
  ].filter(Boolean);
  return (
    <div
      class={`ch-small${chosen ? " ch-chosen" : ""}${other ? " ch-other" : ""}${hue < 0 ? "" : ` ch-shown${coloured ? ` ch-hue${hue}` : ""}`}`}
      role="gridcell"
      aria-selected={chosen || hue >= 0}
      aria-label={`${name}${numbers.length ? `: ${numbers.join(", ")}` : ""}`}
      title={`${name}\n${numbers.join("\n")}`}
      style={coloured ? hueOf(hue) : {}}
      tabIndex={chosen ? 0 : -1}
      data-head={`${layer}/${head}`}
      onClick={(event) => choose(event.ctrlKey || event.metaKey)}
    >
      <canvas ref={canvas} aria-hidden="true" />
      {weight !== null && (
        <i
          aria-hidden="true"
          class="ch-answer"
          style={{ backgroundColor: weight < 0 ? "" : css(placeOf(weight, most, "root"), colours) }}
        />
      )}
      {named && <span aria-hidden="true">{shortName(data, { layer, head })}</span>}
    </div>
  );
}
