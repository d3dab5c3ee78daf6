import { Shell } from "../../shared/shell";
import type { ViewProps } from "../registry";

export function Heads({ head }: ViewProps) {
  return (
    <Shell title={head.title} keys={[["?", "This help"]]}>
      <main></main>
    </Shell>
  );
}
