// Tables: one with all its rows, and one that has only the rows in view.

import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

export interface Column<T> {
  title: string;
  cell: (row: T, index: number) => ComponentChildren;
  /** The first such column names the row. */
  isName?: boolean;
  isNumber?: boolean;
  /** From which width on it is shown. */
  from?: 'medium' | 'wide';
  /** A class of the column. */
  kind?: string;
  sort?: { isOn: boolean; isDescending: boolean; choose: () => void };
}

function classOf<T>(column: Column<T>): string {
  return [column.isNumber ? 'number' : '', column.from ? `from-${column.from}` : '', column.kind ?? ''].filter(Boolean).join(' ');
}

function Head<T>({ columns }: { columns: Column<T>[] }) {
  return (
    <thead>
      <tr>
        {columns.map((column) => {
          const { sort } = column;
          if (!sort) return <th key={column.title} scope="col" class={classOf(column)}>{column.title}</th>;
          return (
            <th key={column.title} scope="col" class={classOf(column)} aria-sort={sort.isOn ? (sort.isDescending ? 'descending' : 'ascending') : 'none'}>
              <button type="button" class="sort" onClick={sort.choose}>
                {column.title}
                <span class="arrow" aria-hidden="true">{sort.isOn ? (sort.isDescending ? '▾' : '▴') : ''}</span>
              </button>
            </th>
          );
        })}
      </tr>
    </thead>
  );
}

function Cells<T>({ columns, row, index }: { columns: Column<T>[]; row: T; index: number }) {
  return (
    <>
      {columns.map((column) =>
        column.isName ? (
          <th key={column.title} scope="row" class={classOf(column)}>{column.cell(row, index)}</th>
        ) : (
          <td key={column.title} class={classOf(column)}>{column.cell(row, index)}</td>
        ),
      )}
    </>
  );
}

export interface TableProps<T> {
  caption: string;
  isCaptionHidden?: boolean;
  columns: Column<T>[];
  rows: T[];
  id: (row: T, index: number) => string;
  empty?: string;
  /** Rows that are shown at first. */
  most?: number;
}

export function Table<T>({ caption, isCaptionHidden = false, columns, rows, id, empty, most = Number.POSITIVE_INFINITY }: TableProps<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [isWide, setWide] = useState(false);
  const [isLong, setLong] = useState(false);
  const isEmpty = rows.length === 0 && empty !== undefined;
  // A table that is wider than its place can be scrolled by keyboard.
  const measure = (): void => setWide(box.current !== null && box.current.scrollWidth > box.current.clientWidth + 1);
  // At once with new rows: the observer is called a frame later.
  useLayoutEffect(measure);
  useEffect(() => {
    const holder = box.current;
    if (!holder) return;
    const sized = new ResizeObserver(measure);
    sized.observe(holder);
    if (holder.firstElementChild) sized.observe(holder.firstElementChild);
    return () => sized.disconnect();
  }, [isEmpty]);
  if (isEmpty) return <p class="muted empty">{empty}</p>;
  // A button for two more rows would take their place.
  const isCut = rows.length > most + 2;
  const shown = isCut && !isLong ? rows.slice(0, most) : rows;
  return (
    <>
      <div class="sideways" ref={box} {...(isWide ? { tabIndex: 0, role: 'region', 'aria-label': caption } : {})}>
        <table class="data">
          <caption class={isCaptionHidden ? 'visually-hidden' : ''}>{caption}</caption>
          <Head columns={columns} />
          <tbody>
            {shown.map((row, index) => (
              <tr key={id(row, index)}>
                <Cells columns={columns} row={row} index={index} />
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {isCut && <button type="button" class="more" aria-expanded={isLong} onClick={() => setLong(!isLong)}>{isLong ? 'Show fewer rows' : `Show all ${rows.length} rows`}</button>}
    </>
  );
}

/** Rows beside those in view, so that scrolling shows no gap. */
const BESIDE = 6;

export interface LongTableProps<T> {
  caption: string;
  columns: Column<T>[];
  total: number;
  /** The row of a number; none while it is on its way. */
  row: (index: number) => T | undefined;
  id: (row: T) => string;
  /** Called with the first row in view and the one after the last. */
  onView?: (first: number, end: number) => void;
  /** The list begins at its top again when this changes. */
  list: string;
  /** Rows have one line at each width. */
  isLow?: boolean;
}

/** A table of any length: the browser has the rows in view. All rows have one height, which the style sheet sets. */
export function LongTable<T>({ caption, columns, total, row, id, onView, list, isLow = false }: LongTableProps<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600, rowHeight: 36 });
  const measure = (): void => {
    const holder = box.current;
    if (!holder) return;
    const rowHeight = Number.parseFloat(getComputedStyle(holder).getPropertyValue('--row')) || 36;
    const next = { top: holder.scrollTop, height: holder.clientHeight, rowHeight };
    setView((old) => (old.top === next.top && old.height === next.height && old.rowHeight === next.rowHeight ? old : next));
  };
  useLayoutEffect(() => {
    box.current?.scrollTo({ top: 0 });
    measure();
  }, [list]);
  useEffect(() => {
    const sized = new ResizeObserver(measure);
    if (box.current) sized.observe(box.current);
    return () => sized.disconnect();
  }, []);
  const { top, height, rowHeight } = view;
  const first = Math.max(0, Math.min(Math.floor(top / rowHeight) - BESIDE, total - 1));
  const end = Math.min(total, Math.ceil((top + height) / rowHeight) + BESIDE);
  useEffect(() => onView?.(first, end), [first, end, list]);
  const width = columns.length;
  return (
    <div class={isLow ? 'long is-low' : 'long'} ref={box} onScroll={measure} tabIndex={0} role="region" aria-label={caption}>
      <table class="data is-long" aria-rowcount={total + 1}>
        <caption class="visually-hidden">{caption}</caption>
        <Head columns={columns} />
        <tbody>
          {first > 0 && <tr class="space" aria-hidden="true"><td colSpan={width} style={{ height: `${first * rowHeight}px` }} /></tr>}
          {Array.from({ length: Math.max(0, end - first) }, (_, at) => {
            const index = first + at;
            const found = row(index);
            return found === undefined ? (
              <tr key={index} aria-rowindex={index + 2} class="coming"><td colSpan={width}>…</td></tr>
            ) : (
              <tr key={id(found)} aria-rowindex={index + 2}>
                <Cells columns={columns} row={found} index={index} />
              </tr>
            );
          })}
          {end < total && <tr class="space" aria-hidden="true"><td colSpan={width} style={{ height: `${(total - end) * rowHeight}px` }} /></tr>}
        </tbody>
      </table>
    </div>
  );
}
