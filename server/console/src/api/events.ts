// Server-sent events out of a stream of text. Pure. An EventSource cannot send a token, so the console reads the stream itself.

export interface ServerEvent {
  event: string;
  data: string;
  id?: string;
}

/** No event is longer, in characters. */
const LONGEST = 1 << 20;

export class EventParser {
  private buffer = '';
  private event = '';
  private data: string[] = [];
  private id: string | undefined;

  /** The events that end within this piece of the stream. */
  feed(text: string): ServerEvent[] {
    this.buffer += text;
    const found: ServerEvent[] = [];
    for (;;) {
      const end = /\r\n|\n|\r(?=[^])/.exec(this.buffer);
      if (!end) break;
      const line = this.buffer.slice(0, end.index);
      this.buffer = this.buffer.slice(end.index + end[0].length);
      const event = this.line(line);
      if (event) found.push(event);
    }
    if (this.buffer.length > LONGEST) throw new Error('an event without an end');
    return found;
  }

  private line(line: string): ServerEvent | undefined {
    if (line === '') {
      const { event, data, id } = this;
      this.event = '';
      this.data = [];
      this.id = undefined;
      if (data.length === 0) return undefined;
      const found: ServerEvent = { event: event || 'message', data: data.join('\n') };
      if (id !== undefined) found.id = id;
      return found;
    }
    // A line that begins with a colon is a comment: the connection lives.
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'event') this.event = value;
    if (field === 'data') this.data.push(value);
    if (field === 'id' && !value.includes('\0')) this.id = value;
    return undefined;
  }
}
