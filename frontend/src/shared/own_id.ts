import { useState } from "preact/hooks";

/** An id that no other figure of the document has: Preact's own begin anew with each that is drawn. */
export function useOwnId(): string {
  return useState(() => `ch-${Math.random().toString(36).slice(2)}`)[0];
}
