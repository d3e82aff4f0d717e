// How well a plan mixes, in numbers and as a picture. Pure.

/** From 1, where every grain is where it began, to 0: as after a full shuffle. */
export function distance(home: number, partitions: number): number {
  const shuffled = 1 / partitions;
  return partitions > 1 ? Math.max(0, (home - shuffled) / (1 - shuffled)) : 0;
}

/** The colours of a share of nothing, of an even share, and of all: light, blue and dark. */
const STOPS = [[247, 247, 245], [91, 140, 200], [16, 24, 48]] as const;

/** Red, green, blue and opacity of a picture whose pixels are shares: in each row the usual share has the middle colour. */
export function shade(rows: number[][], usual: number[]): Uint8ClampedArray<ArrayBuffer> {
  const width = rows[0]?.length ?? 0;
  const pixels = new Uint8ClampedArray(4 * rows.length * width);
  rows.forEach((row, y) => {
    const even = Math.min(1, Math.max(1e-9, usual[y] ?? 0));
    for (let x = 0; x < width; x += 1) {
      const share = Math.min(1, Math.max(0, row[x] ?? 0));
      // Below the usual share, and above it: a scale of its own for each.
      const [from, to, part] = share <= even ? [STOPS[0], STOPS[1], share / even] : [STOPS[1], STOPS[2], Math.log(share / even) / Math.log(1 / even)];
      for (let channel = 0; channel < 3; channel += 1) pixels[4 * (y * width + x) + channel] = (from[channel] ?? 0) + part * ((to[channel] ?? 0) - (from[channel] ?? 0));
      pixels[4 * (y * width + x) + 3] = 255;
    }
  });
  return pixels;
}

/** The first and the last of the shown partitions; `wanted` where there are none. */
export function shownOf(rows: { partition: number }[], wanted: number): [number, number] {
  const first = rows[0]?.partition ?? wanted;
  return [first, rows[rows.length - 1]?.partition ?? first];
}

/** The shares of the labels of a partition, those of all others at the end. */
export function sharesOf({ counts, others }: { counts: number[]; others: number }): number[] {
  const all = [...counts, others];
  const sum = all.reduce((total, one) => total + one, 0);
  return all.map((one) => (sum > 0 ? one / sum : 0));
}
