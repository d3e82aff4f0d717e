// The chart library, in a file of its own: a page shows its answers before it arrives.

export { default } from 'uplot';
