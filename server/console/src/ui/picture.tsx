// A picture of numbers: each share is a pixel, and the usual share of its row has the middle colour.

import { useEffect, useRef } from 'preact/hooks';
import { shade } from '../mixing';

/** `height` is that of the picture, in pixels; without it pixels are squares. */
export function Picture({ rows, usual, label, height }: { rows: number[][]; usual: number[]; label: string; height?: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const place = canvas.current;
    const context = place?.getContext('2d');
    const width = rows[0]?.length ?? 0;
    if (!place || !context || width === 0) return;
    place.width = width;
    place.height = rows.length;
    context.putImageData(new ImageData(shade(rows, usual), width, rows.length), 0, 0);
  }, [rows, usual]);
  return <canvas ref={canvas} role="img" aria-label={label} {...(height === undefined ? {} : { style: { height: `${height}px` } })} />;
}
