// How a view looks: its theme and its scale of colours, which are its own where several stand in one document.

import { createContext } from "preact";
import { useContext, useMemo } from "preact/hooks";
import type { Theme } from "./host";
import type { Scale } from "./scale";
import { computed, type ReadonlySignal, type Signal, signal } from "./signals";

export type { Theme } from "./host";

// Outside of a browser, in a test, there is none.
const system = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
const ofSystem = signal<Theme>(system?.matches ? "dark" : "light");
system?.addEventListener("change", () => (ofSystem.value = system.matches ? "dark" : "light"));

export interface Look {
  theme: ReadonlySignal<Theme>;
  /** What a reader has chosen; null is as the system has it, or the page around a frame. */
  chosen: Signal<Theme | null>;
  /** What the page around a frame has. */
  around: Signal<Theme | null>;
  scale: Signal<Scale>;
}

const Context = createContext<Look | null>(null);
export const LookProvider = Context.Provider;

export function useNewLook(chosen: Signal<Theme | null>, scale: Signal<Scale>): Look {
  return useMemo(() => {
    const around = signal<Theme | null>(null);
    const theme = computed(() => chosen.value ?? around.value ?? ofSystem.value);
    return { theme, chosen, around, scale };
  }, [chosen, scale]);
}

export function useLook(): Look {
  return useContext(Context)!;
}
