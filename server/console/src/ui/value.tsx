// A value of a sample: a picture, a sound, a text, numbers. What a node sends is shown, never run.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { getBytes, resumed } from '../api/client';
import type { SampleValue } from '../api/types';
import { bytes, count } from '../format';
import { part } from '../route';
import { cut, visible } from '../text';
import { brief, FEW, figure, fileName, hexOf, lineOf, numbersOf, pieces, pixelsOf, type Shape, shapesOf, spreadOf } from '../values';
import { Mark } from './parts';
import { saveAs } from './save';

/** Pictures and sounds of more bytes load on request. */
const BY_ITSELF = 8 * 2 ** 20;
/** The most bytes of a text on a page. */
const LONG_TEXT = 256 * 1024;
/** How far outside of the window a picture loads, in pixels. */
const NEAR = 200;

/** The place of a value: its sample, and the path of its bytes. */
export interface Place {
  dataset: string;
  version: string;
  sample: number;
  column: string;
}

const pathOf = ({ version, sample, column }: Place): string => `v1/versions/${part(version)}/samples/${sample}/${part(column)}`;
const nameOf = ({ sample, column }: Place): string => `${cut(visible(column), 60)} of sample ${count(sample)}`;

export function Value({ value, place, isWhole = false }: { value: SampleValue; place: Place; isWhole?: boolean }) {
  if (value === null) return <span class="muted">null</span>;
  switch (value.kind) {
    case 'media':
      return <Media type={String(value.media_type)} length={value.length} place={place} isWhole={isWhole} />;
    case 'text':
      return <TextValue text={value.text} length={value.length} place={place} isWhole={isWhole} />;
    case 'list':
      return <List value={value} name={nameOf(place)} isWhole={isWhole} />;
    case 'nested':
      return (
        <Block isWhole={isWhole} name={nameOf(place)}>
          <Pieces text={cut(JSON.stringify(value.json, undefined, 2) ?? '', isWhole ? LONG_TEXT : 1000)} />
          {value.is_cut && <span class="muted">{'\n'}… the node left out the rest</span>}
        </Block>
      );
    case 'bytes':
      if (!isWhole) break;
      return (
        <>
          <Block isWhole name={nameOf(place)}>{hexOf(value.hex)}{value.hex.length < 2 * value.length && ' …'}</Block>
          <p class="muted below">{bytes(value.length)} <Save place={place} type="" /></p>
        </>
      );
  }
  return isWhole ? <Brief value={value} most={2000} number={String} /> : <Brief value={value} most={160} />;
}

/** A value in a line. */
export function Brief({ value, most = 60, number = figure }: { value: SampleValue; most?: number; number?: (value: unknown) => string }) {
  if (value?.kind === 'media') return <span class="muted">{cut(visible(value.media_type), 30)}, {bytes(value.length)}</span>;
  return <span class={value === null ? 'muted' : ''}>{cut(visible(brief(value, number)), most)}</span>;
}

/** Lines of text; a long one can be scrolled by keyboard. */
function Block({ isWhole, name, children }: { isWhole: boolean; name: string; children: ComponentChildren }) {
  return isWhole ? <pre class="lines is-whole" tabIndex={0} role="region" aria-label={name}>{children}</pre> : <pre class="lines">{children}</pre>;
}

function Pieces({ text }: { text: string }) {
  return <>{pieces(text).map(({ text: of, isEscape }, at) => (isEscape ? <i key={at} class="escape">{of}</i> : of))}</>;
}

function TextValue({ text, length, place, isWhole }: { text: string; length: number; place: Place; isWhole: boolean }) {
  const [all, setAll] = useState<string>();
  const [fault, setFault] = useState('');
  const isCut = new TextEncoder().encode(text).length < length;
  const load = (): void => {
    getBytes(pathOf(place)).then((found) => setAll(new TextDecoder().decode(found)), (error: Error) => setFault(error.message));
  };
  return (
    <>
      <Block isWhole={isWhole} name={nameOf(place)}>
        {text === '' && length === 0 ? <span class="muted">empty</span> : <Pieces text={all ?? cut(text, isWhole ? 2000 : 500)} />}
        {isCut && all === undefined && (isWhole || text === '') && <span class="muted"> …</span>}
      </Block>
      {isWhole && (
        <p class="muted below">
          {bytes(length)}
          {isCut && all === undefined && length <= LONG_TEXT && <> <button type="button" class="more" onClick={load}>Show the whole text</button></>}
          {' '}<Save place={place} type="text/plain" />
          {fault !== '' && <Fault text={fault} />}
        </p>
      )}
    </>
  );
}

function Fault({ text }: { text: string }) {
  return <span role="status"><Mark kind="warning" /> No answer: {cut(visible(text), 200)}</span>;
}

/** Saves the bytes of a value as a file. */
function Save({ place, type }: { place: Place; type: string }) {
  const [fault, setFault] = useState('');
  const save = async (): Promise<void> => {
    try {
      saveAs(await getBytes(pathOf(place)), fileName(place.dataset, place.sample, place.column, type));
      setFault('');
    } catch (error) {
      setFault((error as Error).message);
    }
  };
  return <><button type="button" class="more" onClick={() => void save()}>Save as a file</button>{fault !== '' && <Fault text={fault} />}</>;
}

/** Whether an element is in view, or has been. */
export function useSeen<T extends Element>() {
  const element = useRef<T>(null);
  const [isSeen, setSeen] = useState(false);
  useEffect(() => {
    if (isSeen || !element.current) return;
    const observer = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && setSeen(true), { rootMargin: `${NEAR}px` });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [isSeen]);
  return { element, isSeen };
}

/** A picture, a sound or a film: it loads near the view. Its address is a token's business, so it comes as a blob. */
function Media({ type, length, place, isWhole }: { type: string; length: number; place: Place; isWhole: boolean }) {
  const { element, isSeen } = useSeen<HTMLDivElement>();
  const [isWanted, setWanted] = useState(length <= BY_ITSELF);
  const [url, setUrl] = useState('');
  const [fault, setFault] = useState('');
  const path = pathOf(place);
  const kind = /^(image|audio|video)\/[\w.+-]+$/.exec(type)?.[1];
  useEffect(() => {
    if (!isSeen || !isWanted || !kind) return;
    let own = '';
    let request: AbortController;
    const load = (): void => {
      if (own !== '') return;
      request?.abort();
      request = new AbortController();
      const { signal } = request;
      getBytes(path, signal).then(
        (found) => {
          if (signal.aborted) return;
          own = URL.createObjectURL(new Blob([found], { type }));
          setUrl(own);
          setFault('');
        },
        (error: Error) => !signal.aborted && setFault(`No answer: ${error.message}`),
      );
    };
    load();
    resumed.add(load);
    return () => {
      resumed.delete(load);
      request.abort();
      setUrl('');
      if (own !== '') URL.revokeObjectURL(own);
    };
  }, [isSeen, isWanted, path, type]);
  const what = { image: 'picture', audio: 'sound', video: 'film' }[kind ?? ''] ?? 'file';
  const broken = (): void => setFault(`This browser cannot show the ${what}: ${cut(visible(type), 60)}, ${bytes(length)}`);
  return (
    <div class={`media is-${kind ?? 'file'}${isWhole ? ' is-whole' : ''}`}>
      <div class="screen" ref={element}>
        {fault !== '' ? <p class="broken" role="status"><Mark kind="warning" /> {cut(visible(fault), 300)}</p>
          : !isWanted ? <button type="button" onClick={() => setWanted(true)}>Load the {what}, {bytes(length)}</button>
          : url === '' ? <span class="muted">{kind ? '…' : cut(visible(type), 60)}</span>
          : kind === 'image' ? <img src={url} alt={nameOf(place)} onError={broken} onLoad={(event) => event.currentTarget.classList.toggle('is-small', event.currentTarget.naturalWidth <= 96)} />
          : kind === 'audio' ? <audio controls preload="metadata" src={url} aria-label={nameOf(place)} onError={broken} />
          : <video controls preload="metadata" src={url} aria-label={nameOf(place)} onError={broken} />}
      </div>
      {isWhole && <p class="muted below">{cut(visible(type), 60)}, {bytes(length)} <Save place={place} type={type} /></p>}
    </div>
  );
}

function List({ value, name, isWhole }: { value: SampleValue & { kind: 'list' }; name: string; isWhole: boolean }) {
  const { type, length } = value;
  const [chosen, choose] = useState(0);
  const numbers = numbersOf(value.values);
  // An answer has its limit: the last lists may have no values.
  const shapes = numbers.length > 0 ? shapesOf(length, type) : [];
  const shape = shapes[chosen];
  const spread = spreadOf(numbers);
  const facts = `${count(length)} × ${cut(visible(type), 30)}${spread ? `, ${figure(spread.min)} to ${figure(spread.max)}, mean ${figure(spread.mean)}` : ''}`;
  const line = shape || length <= FEW ? '' : lineOf(numbers);
  return (
    <figure class={`list${isWhole ? ' is-whole' : ''}`}>
      {shape ? <Heatmap values={numbers} shape={shape} type={type} label={`${name} as ${shape.title}: ${facts}`} />
        : line !== '' && <svg class="line" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label={`${name} as a line: ${facts}`}><path d={line} /></svg>}
      <figcaption class="muted">
        {facts}
        {numbers.length < length && (numbers.length === 0 ? '; only the page of the sample shows them' : `; of the first ${count(numbers.length)}`)}
        {isWhole && shapes.length > 0 && (
          <label class="field inline">
            <span>Shown as</span>
            <select value={String(chosen)} onChange={(event) => choose(Number(event.currentTarget.value))}>
              {[...shapes.map(({ title }) => title), 'a line'].map((title, at) => <option key={title} value={String(at)}>{title}</option>)}
            </select>
          </label>
        )}
      </figcaption>
      {isWhole && <pre class="lines is-whole" tabIndex={0} role="region" aria-label={`Numbers: ${name}`}>{cut(visible(value.values.map(String).join(', ')), LONG_TEXT)}{numbers.length < length && ', …'}</pre>}
    </figure>
  );
}

function Heatmap({ values, shape, type, label }: { values: number[]; shape: Shape; type: string; label: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const place = canvas.current;
    if (!place) return;
    const { width, height, rgba } = pixelsOf(values, shape, type);
    place.width = width;
    place.height = height;
    place.getContext('2d')?.putImageData(new ImageData(rgba, width, height), 0, 0);
  });
  return <canvas ref={canvas} role="img" aria-label={label} class={shape.planes.length > 1 && !shape.isColour ? 'is-wide' : ''} />;
}
