// Light, dark, or as the machine has it. Remembered in this browser.

import { Store } from './store';

export type Theme = 'auto' | 'light' | 'dark';
const KEY = 'shardd.theme';
const ORDER: Theme[] = ['auto', 'light', 'dark'];

function remembered(): Theme {
  try {
    const found = localStorage.getItem(KEY);
    return ORDER.find((theme) => theme === found) ?? 'auto';
  } catch {
    return 'auto';
  }
}

const chosen = new Store<Theme>(remembered());
const system = matchMedia('(prefers-color-scheme: dark)');
/** The choice and its effect: `auto dark`. */
export const theme = new Store<string>('');

function apply(): void {
  const now = chosen.get();
  const seen = now === 'auto' ? (system.matches ? 'dark' : 'light') : now;
  if (now === 'auto') delete document.documentElement.dataset['theme'];
  else document.documentElement.dataset['theme'] = now;
  theme.set(`${now} ${seen}`);
}

export function choice(): Theme {
  return chosen.get();
}

export function nextTheme(): void {
  const next = ORDER[(ORDER.indexOf(chosen.get()) + 1) % ORDER.length] ?? 'auto';
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // The choice lasts as long as the page.
  }
  chosen.set(next);
  apply();
}

system.addEventListener('change', apply);
apply();
