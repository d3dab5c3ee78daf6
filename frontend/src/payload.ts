// The container that Python writes (drawing/payload.py): a head of JSON, and named arrays.
//
//   "clearhead\npage" | uint32, length of the head | the head, deflated | the arrays, each deflated
//
// Every part begins at a multiple of three bytes, so that each can be read out of base64 by itself.

const DTYPES = {
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  int32: Int32Array,
  float32: Float32Array,
};

export type Numbers = InstanceType<(typeof DTYPES)[keyof typeof DTYPES]>;

export interface ArrayPlace {
  dtype: keyof typeof DTYPES;
  shape: number[];
  /** Where its bytes begin, counted from the end of the head, and how many they are. */
  start: number;
  bytes: number;
}

/** What a payload says of itself; `data` is what the view of this kind needs. */
export interface Head<Data = unknown> {
  version: number;
  kind: string;
  title: string;
  data: Data;
  arrays: Record<string, ArrayPlace>;
  /** Where the arrays begin in the container; found out by `readHead`. */
  end: number;
}

export const MAGIC = "clearhead\npage";
export const VERSION = 1;
const BEFORE_HEAD = 18;

/** Reads bytes of a container, from a place on. */
export type Reader = (start: number, bytes: number) => Uint8Array | Promise<Uint8Array>;

export async function readHead(read: Reader): Promise<Head> {
  const first = await read(0, BEFORE_HEAD);
  if (new TextDecoder().decode(first.subarray(0, MAGIC.length)) !== MAGIC) {
    throw new Error("This is not a page of clearhead, or it was cut short.");
  }
  const size = new DataView(first.buffer, first.byteOffset).getUint32(MAGIC.length, true);
  const text = await inflate(await read(BEFORE_HEAD, size));
  const head = JSON.parse(new TextDecoder().decode(text)) as Head;
  if (head.version !== VERSION) {
    throw new Error(`This page has version ${head.version}; version ${VERSION} is known.`);
  }
  head.end = BEFORE_HEAD + Math.ceil(size / 3) * 3;
  return head;
}

export async function readArray(read: Reader, head: Head, name: string): Promise<Numbers> {
  const place = head.arrays[name];
  if (!Object.hasOwn(head.arrays, name) || place === undefined)
    throw new Error(`There is no array ${name} in this page.`);
  const bytes = await inflate(await read(head.end + place.start, place.bytes));
  return new DTYPES[place.dtype](bytes.buffer as ArrayBuffer);
}

/** Undoes Python's zlib.compress. */
export async function inflate(bytes: Uint8Array): Promise<Uint8Array> {
  const stream = new Blob([bytes as Uint8Array<ArrayBuffer>])
    .stream()
    .pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
