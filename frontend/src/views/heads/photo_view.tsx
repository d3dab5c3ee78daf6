// A picture in a text, coloured where a head looks at it.

import { useEffect, useMemo, useRef } from "preact/hooks";
import { useLoaded } from "../../shared/loaded";
import { useLook } from "../../shared/look";
import type { Point } from "../../shared/map";
import { percent } from "../../shared/scale";
import type { ReadonlySignal } from "../../shared/signals";
import type { Source } from "../../source";
import type { HeadMap, HeadsData } from "./data";
import { lightOf, mostOf, type PhotoData, paintPhoto, picture, shareOf, sizeOf } from "./photo";

interface PhotoProps {
  data: HeadsData;
  source: Source;
  photo: PhotoData;
  /** All pictures of the text, which have one scale. */
  photos: PhotoData[];
  map: HeadMap | null;
  active: ReadonlySignal<Point>;
  /** The token of a point. */
  ownOf: (point: Point) => number | null;
  onHover: (at: number) => void;
  onPin: (at: number, asKey: boolean) => void;
}

export function PhotoView(props: PhotoProps) {
  const { data, source, photo, photos, map, active, ownOf, onHover, onPin } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  // A picture that cannot be read leaves the map.
  const { value: image } = useLoaded(() => picture(data, source, photo), [source, photo]);
  const dark = useLook().theme.value;
  const { query } = active.value;
  const own = photo.places.indexOf(ownOf(active.value) ?? -1);
  const light = useMemo(() => map && lightOf(map, query), [map, query]);
  const [rows, columns] = photo.grid;
  useEffect(() => {
    const place = canvas.current;
    if (!place || !image || !light) return;
    const size = sizeOf(image, 900);
    [place.width, place.height] = size;
    const context = place.getContext("2d")!;
    paintPhoto(context, image, photo, light, mostOf(light, photos), dark, size);
    if (own < 0) return;
    context.strokeStyle = "#ff8a3d";
    context.lineWidth = 4;
    const [wide, tall] = [size[0] / columns, size[1] / rows];
    context.strokeRect((own % columns) * wide, Math.floor(own / columns) * tall, wide, tall);
  }, [image, light, own, photo, photos, rows, columns, dark]);

  const at = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const inside = (share: number, count: number) =>
      Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    const row = inside((event.clientY - box.top) / box.height, rows);
    return photo.places[row * columns + inside((event.clientX - box.left) / box.width, columns)]!;
  };
  const name = photos.length > 1 ? `Picture ${photos.indexOf(photo) + 1}` : "The picture";
  const share = light && `${map?.at ? "" : "at least "}${percent(shareOf(light, photo))}`;
  const whose = query === null ? "the attention of all queries" : "the query’s attention";
  const gets = share && `${name} gets ${share} of ${whose}.`;
  return (
    <figure class="ch-photo">
      <canvas
        ref={canvas}
        role="img"
        aria-label={gets ?? name}
        onPointerMove={(event) => event.pointerType === "mouse" && onHover(at(event))}
        onClick={(event) => onPin(at(event), event.shiftKey)}
      />
      <figcaption class="ch-remark">{gets}</figcaption>
    </figure>
  );
}
