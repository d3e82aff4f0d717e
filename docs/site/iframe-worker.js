// Browsers start no worker for a page that was opened from a folder. There, a hidden frame runs the script of the search.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      // Scripts of a worker are loaded one after the other.
      inside.importScripts = (...urls) =>
        urls.reduce(
          (before, url) =>
            before.then(
              () =>
                new Promise((loaded) => {
                  const script = inside.document.createElement("script");
                  script.onload = loaded;
                  script.src = url;
                  inside.document.body.append(script);
                }),
            ),
          Promise.resolve(),
        );
      inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      };
      this.ready = inside.importScripts(url);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
