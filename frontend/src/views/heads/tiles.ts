// Tiles from the arrays of a page of heads.
import type { Source, Tile, TileRequest } from "../../source";

export async function headsTile(_source: Source, _request: TileRequest): Promise<Tile | null> {
  return null;
}
