// A picture in a text, coloured where a head looks at it.

import { useEffect, useMemo, useRef } from "preact/hooks";
import { useLoaded } from "../../shared/loaded";
import { useLook } from "../../shared/look";
import type { Point } from "../../shared/map";
import { percent } from "../../shared/scale";
import type { Source } from "../../source";
import type { HeadMap } from "./data";
import { lightOf, mostOf, type PhotoData, paintPhotos, picture, shareOf } from "./photo";

interface PhotoProps {
  source: Source;
  photo: PhotoData;
  /** All pictures of the text, which have one scale. */
  photos: PhotoData[];
  map: HeadMap | null;
  active: Point;
  ownOf: (point: Point) => number | null;
  onHover: (at: number) => void;
  onPin: (at: number, asKey: boolean) => void;
}

export function PhotoView(props: PhotoProps) {
  const { source, photo, photos, map, active, ownOf, onHover, onPin } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  // A picture that cannot be read leaves the map.
  const { value: image } = useLoaded(() => picture(source, photo), [source, photo]);
  const dark = useLook().theme.value;
  const { query } = active;
  const own = photo.places.indexOf(ownOf(active) ?? -1);
  const light = useMemo(() => map && lightOf(map, query), [map, query]);
  const [rows, columns] = photo.grid;
  useEffect(() => {
    const place = canvas.current;
    if (!place || !image || !light) return;
    paintPhotos(place, [image], [photo], light, mostOf(light, photos), dark, 900);
    if (own < 0) return;
    const context = place.getContext("2d")!;
    context.strokeStyle = "#ff8a3d";
    context.lineWidth = 4;
    const [wide, tall] = [place.width / columns, place.height / rows];
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
  const share = `${map?.at ? "" : "at least "}${percent(light ? shareOf(light, photo) : 0)}`;
  const gets = `${name} gets ${share} of ${query === null ? "all" : "the query’s"} attention.`;
  return (
    <figure class="ch-photo">
      <canvas
        ref={canvas}
        role="img"
        aria-label={gets}
        onPointerMove={(event) => event.pointerType === "mouse" && onHover(at(event))}
        onClick={(event) => onPin(at(event), event.shiftKey)}
      />
      <figcaption class="ch-remark">{light && gets}</figcaption>
    </figure>
  );
}
