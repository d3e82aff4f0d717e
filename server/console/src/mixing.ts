// How well a plan mixes, in numbers and as a picture. Pure.

/** From 1, where every grain is where it began, to 0: as after a full shuffle. */
export function distance(home: number, partitions: number): number {
  const shuffled = 1 / partitions;
  return partitions > 1 ? Math.max(0, (home - shuffled) / (1 - shuffled)) : 0;
}

/** The colours of a share of nothing, of an even share, and of all: light, blue and dark. */
const STOPS = [[247, 247, 245], [91, 140, 200], [16, 24, 48]] as const;

/** Red, green, blue and opacity of a matrix whose rows are shares: an even share has the middle colour. */
export function shade(rows: number[][]): Uint8ClampedArray<ArrayBuffer> {
  const pixels = new Uint8ClampedArray(4 * rows.length * rows.length);
  const even = 1 / Math.max(1, rows.length);
  rows.forEach((row, y) =>
    rows.forEach((_, x) => {
      const share = Math.min(1, Math.max(0, row[x] ?? 0));
      // Below an even share, and above it: a scale of its own for each.
      const [from, to, part] = share <= even ? [STOPS[0], STOPS[1], share / even] : [STOPS[1], STOPS[2], Math.log(share / even) / Math.log(1 / even)];
      for (let channel = 0; channel < 3; channel += 1) pixels[4 * (y * rows.length + x) + channel] = (from[channel] ?? 0) + part * ((to[channel] ?? 0) - (from[channel] ?? 0));
      pixels[4 * (y * rows.length + x) + 3] = 255;
    }),
  );
  return pixels;
}
