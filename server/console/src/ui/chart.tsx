// Lines over time, with a table of their values beside them: now, or at the moment under the pointer or the arrow keys.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type uPlot from 'uplot';
import { clock, count, isNumber, NONE } from '../format';
import { downsample, type Points, summary } from '../series';
import { Store, useStore } from '../store';
import { theme } from '../theme';
import { cut, visible } from '../text';

export interface Line {
  label: string;
  /** `null` is a gap; at `undefined` the line has no point of its own, and continues. */
  points: Points | (number | null | undefined)[];
  /** The number of a colour, from 0; lines of one chart have different ones. */
  colour?: number;
  dashed?: boolean;
}

export interface ChartProps {
  title: string;
  /** Seconds since 1970, or steps or epochs. */
  times: number[];
  axis?: 'time' | 'step' | 'epoch';
  lines: Line[];
  format: (value: unknown) => string;
  /** The axis has marks at multiples of powers of two, for bytes. */
  isBinary?: boolean;
  /** The least top of the axis. */
  least?: number;
  /** What to say where there is nothing to draw. */
  empty?: string;
  /** A moment was clicked, or chosen by Enter. */
  onPick?: (at: number) => void;
}

const HEIGHT = 132;
const COLOURS = 8;
const POWERS = Array.from({ length: 61 }, (_, power) => 2 ** power);
/** The distances of marks: whole steps, and whole minutes, as marks have no seconds. */
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const MINUTES = [1, 2, 5, 10, 15, 20, 30, 60, 120, 360, 720, 1440].map((minutes) => 60 * minutes);

type Library = typeof uPlot;
const library = new Store<Library | undefined>(undefined);
let loading: Promise<void> | undefined;

/** The chart library, once it is there; charts are tables until then. */
function useLibrary(): Library | undefined {
  useEffect(() => {
    // The build keeps it apart: see build.mjs.
    const file = './charts.js';
    loading ??= import(file).then(
      (module: { default: Library }) => library.set(module.default),
      // The next chart asks again.
      () => void (loading = undefined),
    );
  }, []);
  return useStore(library);
}

/** A colour of the style sheet as the canvas takes it. */
function resolved(holder: HTMLElement, name: string): string {
  const probe = holder.appendChild(document.createElement('i'));
  probe.style.color = `var(${name})`;
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

export function Chart({ title, times, axis: of = 'time', lines, format, isBinary = false, least = 0, empty = 'No values in the last hour.', onPick }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [at, setAt] = useState<number | undefined>();
  const mode = useStore(theme);
  const Plot = useLibrary();
  const shown = lines.filter((line) => line.points.some((value) => isNumber(value)));
  const shape = `${mode} ${Plot !== undefined} ${shown.map((line) => `${line.label}/${line.colour}/${line.dashed}`).join('\n')}`;
  const data = useMemo<uPlot.AlignedData>(() => {
    // Steps are few, and a mean of theirs would hide a spike.
    const most = of !== 'time' ? times.length : Math.max(40, box.current?.clientWidth ?? 400);
    const step = Math.ceil(times.length / most);
    const thinned = step <= 1 ? times : times.filter((_, index) => index % step === step - 1);
    return [thinned, ...shown.map((line) => (of === 'time' ? downsample(line.points as Points, most) : line.points).slice(0, thinned.length))];
  }, [times, ...shown.map((line) => line.points)]);

  useEffect(() => {
    const holder = box.current;
    if (!holder || !Plot || shown.length === 0) return;
    const colour = (name: string): string => resolved(holder, name);
    const axis = {
      stroke: colour('--muted'),
      font: `11px ${getComputedStyle(holder).fontFamily}`,
      grid: { stroke: colour('--rule'), width: 1 },
      ticks: { show: false },
    };
    const made = new Plot(
      {
        width: Math.max(200, holder.clientWidth),
        height: HEIGHT,
        padding: [8, 4, 0, 0],
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, points: { size: 6 }, y: false },
        scales: { x: { time: of === 'time' }, y: { range: (_, __, most) => [0, Math.max(least, (most ?? 0) * 1.08) || 1] } },
        axes: [
          { ...axis, size: 24, gap: 4, space: 64, incrs: of === 'time' ? MINUTES : WHOLE, values: (_, marks) => marks.map((mark) => (of === 'time' ? clock(mark).slice(-5) : count(mark))) },
          { ...axis, size: 68, gap: 6, space: 28, ...(isBinary ? { incrs: POWERS } : {}), values: (_, marks) => marks.map((mark) => format(mark)) },
        ],
        series: [
          {},
          ...shown.map((line, index) => ({
            label: line.label,
            stroke: colour(`--line-${(line.colour ?? index) % COLOURS}`),
            width: 1.5,
            points: { show: false },
            spanGaps: false,
            ...(line.dashed ? { dash: [5, 4] } : {}),
          })),
        ],
        hooks: { setCursor: [(self) => setAt(self.cursor.idx ?? undefined)] },
      },
      data,
      holder,
    );
    plot.current = made;
    const sized = new ResizeObserver(() => {
      if (holder.clientWidth > 0) made.setSize({ width: holder.clientWidth, height: HEIGHT });
    });
    sized.observe(holder);
    return () => {
      sized.disconnect();
      made.destroy();
      plot.current = undefined;
    };
  }, [shape]);
  useEffect(() => {
    if (plot.current && plot.current.data !== data) plot.current.setData(data);
  }, [data]);

  const last = (data[0]?.length ?? 0) - 1;
  const index = at !== undefined && at <= last ? at : undefined;
  const isTime = of === 'time';
  const moment = index === undefined ? (isTime ? 'now' : 'last') : isTime ? clock(data[0]?.[index]) : `${of} ${count(data[0]?.[index])}`;
  const sums = shown.map((line) => summary(line.points));
  const valueOf = (line: number): string => format((index === undefined ? sums[line]?.last : data[line + 1]?.[index]) ?? undefined);
  const spoken = shown.map((line, number) => `${cut(visible(line.label), 40)} ${valueOf(number)}`).join(', ');

  const move = (event: KeyboardEvent): void => {
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || !plot.current) {
      if (event.key === 'Escape') unset();
      if (event.key === 'Enter') pick();
      return;
    }
    event.preventDefault();
    const next = Math.min(last, Math.max(0, (index ?? last) + step));
    setAt(next);
    plot.current.setCursor({ left: plot.current.valToPos(data[0]?.[next] ?? 0, 'x'), top: 0 }, false);
  };
  const pick = (): void => {
    const chosen = data[0]?.[index ?? last];
    if (chosen !== undefined) onPick?.(chosen);
  };
  const unset = (): void => {
    setAt(undefined);
    plot.current?.setCursor({ left: -10, top: -10 }, false);
  };

  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      {shown.length === 0 ? <p class="muted empty">{empty}</p> : (
        <>
          <div
            class={onPick ? 'plot is-clickable' : 'plot'}
            ref={box}
            tabIndex={0}
            role="slider"
            aria-label={`${title}: ${isTime ? 'moment of the last hour' : of === 'step' ? 'step of the training' : 'epoch'}`}
            aria-valuemin={0}
            aria-valuemax={Math.max(0, last)}
            aria-valuenow={index ?? Math.max(0, last)}
            aria-valuetext={`${moment}: ${spoken}`}
            onKeyDown={move}
            onClick={onPick && pick}
            onBlur={unset}
          />
          <table class="legend">
            <caption class="visually-hidden">{title}, {isTime ? 'last hour' : `by ${of}`}</caption>
            <thead>
              <tr>
                <th scope="col"><span class="visually-hidden">Line</span></th>
                <th scope="col" class="number moment">{moment}</th>
                <th scope="col" class="number">least</th>
                <th scope="col" class="number">most</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((line, number) => (
                <tr key={line.label}>
                  <th scope="row">
                    <i class={`swatch line-${(line.colour ?? number) % COLOURS}${line.dashed ? ' is-dashed' : ''}`} aria-hidden="true" />
                    <span title={cut(visible(line.label))}>{cut(visible(line.label), 32)}</span>
                  </th>
                  <td class="number">{valueOf(number)}</td>
                  <td class="number">{sums[number]?.least === null ? NONE : format(sums[number]?.least)}</td>
                  <td class="number">{sums[number]?.most === null ? NONE : format(sums[number]?.most)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </>
      )}
    </figure>
  );
}
