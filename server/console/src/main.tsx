import { render } from 'preact';
import 'uplot/dist/uPlot.min.css';
import './console.css';
import { follow } from './api/follow';
import { App } from './app';

const root = document.getElementById('app');
if (root) {
  render(<App />, root);
  follow();
}
