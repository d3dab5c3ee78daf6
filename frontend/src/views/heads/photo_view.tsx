// What a head looks at in a picture.

import { useEffect, useRef } from "preact/hooks";
import { useLoaded } from "../../shared/loaded";
import { useLook } from "../../shared/look";
import type { Point } from "../../shared/map";
import { percent } from "../../shared/scale";
import type { ReadonlySignal } from "../../shared/signals";
import type { Source } from "../../source";
import type { HeadMap } from "./data";
import { lightOf, looksAtItself, type PhotoData, paintPhoto, picture } from "./photo";
import { patchName } from "./words";

interface PhotoProps {
  source: Source;
  photo: PhotoData;
  map: HeadMap | null;
  active: ReadonlySignal<Point>;
  keyName: (key: number) => string;
  /** The point of a token. */
  pointOf: (key: number) => Point;
  onHover: (point: Point) => void;
  onPin: (point: Point) => void;
}

const NOWHERE: Point = { query: null, key: null };

export function PhotoView(props: PhotoProps) {
  const { source, photo, map, active, keyName, pointOf, onHover, onPin } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  // A picture that cannot be read leaves the map.
  const { value: image } = useLoaded(() => picture(source, photo), [source, photo]);
  const dark = useLook().theme.value;
  const { query, key } = active.value;
  const [rows, columns] = photo.grid;
  const { skip } = photo;
  useEffect(() => {
    const place = canvas.current;
    if (!place || !image || !map) return;
    const unit = Math.max(1, Math.round(900 / Math.max(columns, rows)));
    [place.width, place.height] = [columns * unit, rows * unit];
    paintPhoto(place, image, lightOf(map, photo, query), photo.grid, dark);
    const own = looksAtItself(map.layer) && query !== null ? query : key;
    if (own === null || own < skip) return;
    const context = place.getContext("2d")!;
    context.strokeStyle = "#ff8a3d";
    context.lineWidth = 4;
    const [row, column] = [Math.floor((own - skip) / columns), (own - skip) % columns];
    context.strokeRect(column * unit, row * unit, unit, unit);
  }, [image, map, query, key, photo, rows, columns, skip, dark]);

  const at = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const inside = (share: number, count: number) =>
      Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    const row = inside((event.clientY - box.top) / box.height, rows);
    return pointOf(skip + row * columns + inside((event.clientX - box.left) / box.width, columns));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    const now = active.peek().key ?? active.peek().query;
    if (step !== undefined) {
      const next = now === null ? skip : now + step;
      if (next >= skip && next < skip + rows * columns) onHover(pointOf(next));
    } else if ((event.key === "Enter" || event.key === " ") && now !== null) {
      onPin(pointOf(now));
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };
  const skipped = Array.from({ length: skip }, (_, place) => place);
  const share =
    map && query !== null ? lightOf(map, photo, query).reduce((a, b) => a + b, 0) : null;
  return (
    <div class="ch-photo">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-roledescription="picture"
        aria-label="The picture, coloured where it is looked at. Arrow keys go from patch to patch, Enter pins."
        onPointerMove={(event) => event.pointerType === "mouse" && onHover(at(event))}
        onPointerLeave={() => onHover(NOWHERE)}
        onBlur={() => onHover(NOWHERE)}
        onClick={(event) => onPin(at(event))}
        onKeyDown={onKeyDown}
      />
      <p class="ch-remark">
        {query === null
          ? "The stronger its colour, the more a patch is looked at, by all queries on average."
          : `The stronger its colour, the more a patch is looked at by ${patchName(keyOrQuery(map, query, keyName))}: the picture gets ${percent(share ?? 0)} of its attention.`}{" "}
        {map &&
          looksAtItself(map.layer) &&
          skipped.map((place) => (
            <button
              key={place}
              type="button"
              class="ch-button"
              onClick={() => onPin(pointOf(place))}
            >
              {keyName(place)}
            </button>
          ))}
      </p>
    </div>
  );
}

function keyOrQuery(map: HeadMap | null, query: number, keyName: (key: number) => string) {
  return map && looksAtItself(map.layer) ? keyName(query) : `query ${query}`;
}
