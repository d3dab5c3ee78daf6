// What two runs are called, wherever "A" and "B" are read.
import type { HeadsData } from "./data";
import { runName } from "./names";

/** The name of a run behind its letter; nothing where it has no other name. */
export function RunName({ data, run }: { data: HeadsData; run: number }) {
  const name = runName(data, run);
  return name ? <bdi class="ch-run">{name}</bdi> : null;
}

/** "A tired, B wide", under a list of heads of both; nothing where they have no names. */
export function RunNames({ data }: { data: HeadsData }) {
  if (!data.runs.some((_, run) => runName(data, run))) return null;
  return (
    <p class="ch-remark ch-runs">
      {data.runs.map((_, run) => (
        <span key={run}>
          {"AB"[run]} <RunName data={data} run={run} />
        </span>
      ))}
    </p>
  );
}
