// A value that components watch.

import { useEffect, useState } from 'preact/hooks';

export class Store<T> {
  private readonly watchers = new Set<() => void>();

  constructor(private value: T) {}

  get(): T {
    return this.value;
  }

  set(value: T): void {
    if (Object.is(value, this.value)) return;
    this.value = value;
    for (const watcher of [...this.watchers]) watcher();
  }

  update(change: Partial<T>): void {
    this.set({ ...this.value, ...change });
  }

  watch(watcher: () => void): () => void {
    this.watchers.add(watcher);
    return () => {
      this.watchers.delete(watcher);
    };
  }
}

export function useStore<T>(store: Store<T>): T {
  const [, redraw] = useState({});
  const drawn = store.get();
  useEffect(() => {
    if (!Object.is(store.get(), drawn)) redraw({});
    return store.watch(() => redraw({}));
  }, [store]);
  return drawn;
}
