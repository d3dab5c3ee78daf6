// Numbers under their names, such as those of a head under its map.

import type { ComponentChildren } from "preact";
import { quantity } from "../../shared/scale";
import type { Row } from "./data";
import { ROLES } from "./guide";

interface FactProps {
  name: ComponentChildren;
  children: ComponentChildren;
}

export function Fact({ name, children }: FactProps) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** The numbers of a head. */
export function Facts({ row, roles }: { row: Row; roles: string[] }) {
  return (
    <dl class="ch-facts ch-head-facts">
      {row.entropy !== null && <Fact name="entropy">{quantity(row.entropy, "nats")}</Fact>}
      {row.distance !== null && (
        <Fact name="mean distance">{quantity(row.distance, "tokens")}</Fact>
      )}
      {roles
        .filter((role) => Math.round(row.scores[role]! * 100) > 0)
        .map((role) => (
          <Fact key={role} name={<span title={roleCard(role)}>{role}</span>}>
            {Math.round(row.scores[role]! * 100)} %
          </Fact>
        ))}
    </dl>
  );
}

export function roleCard(role: string): string {
  return `${role}: ${ROLES[role] ?? role}.`;
}
