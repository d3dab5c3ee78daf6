interface ChoiceProps<Each extends string> {
  name: string;
  value: Each;
  /** What there is to choose, and how it is called. */
  all: Partial<Record<Each, string>>;
  /** Which cannot be chosen now. */
  disabled?: Each | null;
  onChoice: (to: Each) => void;
}

/** One of a few, by its name. */
export function Choice<Each extends string>(props: ChoiceProps<Each>) {
  const { name, value, all, disabled, onChoice } = props;
  return (
    <select
      aria-label={name}
      value={value}
      onChange={(event) => onChoice(event.currentTarget.value as Each)}
    >
      {Object.entries(all).map(([each, called]) => (
        <option key={each} value={each} disabled={each === disabled}>
          {called as string}
        </option>
      ))}
    </select>
  );
}
