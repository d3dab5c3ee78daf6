// A head as a small map, with its answer to what is pinned.

import { useEffect, useMemo, useRef } from "preact/hooks";
import { css } from "../../shared/colour";
import { useLook } from "../../shared/look";
import { paintValues } from "../../shared/map";
import { number, percent, placeOf } from "../../shared/scale";
import type { Source } from "../../source";
import { type HeadsData, type Row, table } from "./data";
import { headName, layerName, score, titleOf } from "./names";
import { lightOf, mostOf, paintPhoto, photosOf, picture, sizeOf } from "./photo";
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
  reachable: boolean;
  /** Its place among several that are shown, -1 for none, and whether these have colours. */
  hue: number;
  coloured: boolean;
  choose: (more: boolean) => void;
}

export function Small({
  data,
  source,
  layer,
  head,
  row,
  query,
  named,
  weight,
  most,
  apart,
  chosen,
  other,
  reachable,
  hue,
  coloured,
  choose,
}: SmallProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const about = data.layers[layer]!.small;
  const colours = useLook().theme.value;
  const layerData = data.layers[layer]!;
  const photos = useMemo(() => photosOf(data, layerData), [data, layerData]);
  useEffect(() => {
    if (!photos.length) return;
    let gone = false;
    const images = Promise.all(photos.map((photo) => picture(data, source, photo)));
    void Promise.all([images, headMap(source, layer, layerData, head)]).then(
      ([images, map]) => {
        const place = canvas.current;
        if (gone || !place) return;
        const sizes = images.map((image) => sizeOf(image, 112));
        place.width = sizes.reduce((sum, [width]) => sum + width, 0);
        place.height = Math.max(...sizes.map(([, height]) => height));
        const light = lightOf(map, query);
        let left = 0;
        for (const [n, size] of sizes.entries()) {
          const context = place.getContext("2d")!;
          const most = mostOf(light, photos);
          paintPhoto(context, images[n]!, photos[n]!, light, most, colours, size, left);
          left += size[0];
        }
      },
      () => undefined, // a picture that cannot be read leaves the maps
    );
    return () => {
      gone = true;
    };
  }, [data, source, photos, layerData, layer, head, query, colours]);
  useEffect(() => {
    if (!about || photos.length) return;
    let gone = false;
    void source.array(`${layer}/small`).then((codes) => {
      const place = canvas.current;
      if (gone || !place) return;
      const [height, width] = about.shape;
      [place.height, place.width] = [height, width];
      const context = place.getContext("2d")!;
      const pixels = context.createImageData(width, height);
      const values = table(about, about.top[head]!);
      const own = codes.subarray(head * height * width, (head + 1) * height * width);
      paintValues(
        new Uint32Array(pixels.data.buffer),
        Float32Array.from(own as Uint8Array, (code) => values[code]!),
        about.top[head]!,
        colours,
        "root",
      );
      context.putImageData(pixels, 0, 0);
    });
    return () => {
      gone = true;
    };
  }, [source, about, photos, layer, head, colours]);
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
      tabIndex={reachable ? 0 : -1}
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
      {named && (
        <span aria-hidden="true">
          {layerName(data, layer)}.{headName(data, { layer, head })}
        </span>
      )}
    </div>
  );
}
