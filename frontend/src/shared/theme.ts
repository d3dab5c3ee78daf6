// Dark and light: as the system has it, until somebody chooses. Nothing is stored.
import { computed, signal } from "@preact/signals";

export type Theme = "light" | "dark";

// Outside of a browser, in a test, there is none.
const system = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
const ofSystem = signal<Theme>(system?.matches ? "dark" : "light");
system?.addEventListener("change", () => (ofSystem.value = system.matches ? "dark" : "light"));

/** null is as the system has it. */
export const chosen = signal<Theme | null>(null);

export const theme = computed<Theme>(() => chosen.value ?? ofSystem.value);

export function toggleTheme() {
  chosen.value = theme.value === "dark" ? "light" : "dark";
}
