// The panel with the current settings as curl and Python.
import { BASE, key } from "./api.js";
import { curl, python } from "./snippets.js";
import { FORMATS } from "./stage.js";

const byId = (id) => document.getElementById(id);
const TABS = { "tab-curl": curl, "tab-python": python };

export class Code {
  /** @param request Gives the body of the current request; a recording is only said to be there. */
  constructor(request) {
    this.request = request;
    this.tab = "tab-curl";
    for (const format of FORMATS) byId("code-format").append(new Option(format));
    byId("code-format").onchange = () => this.draw();
    for (const id of Object.keys(TABS)) {
      byId(id).onclick = () => this.choose(id);
      byId(id).onkeydown = ({ key: pressed }) => {
        if (pressed !== "ArrowLeft" && pressed !== "ArrowRight") return;
        this.choose(Object.keys(TABS).find((other) => other !== id));
        byId(this.tab).focus();
      };
    }
    byId("copy").onclick = () => this.copy();
  }

  choose(tab) {
    this.tab = tab;
    for (const id of Object.keys(TABS)) {
      byId(id).setAttribute("aria-selected", String(id === tab));
      byId(id).tabIndex = id === tab ? 0 : -1;
    }
    byId("code").setAttribute("aria-labelledby", tab);
    this.draw();
  }

  draw() {
    const body = { ...this.request(), response_format: byId("code-format").value };
    byId("code-text").textContent = TABS[this.tab](BASE.href, body, key.get() !== "");
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(byId("code-text").textContent);
      byId("copy").textContent = "Copied";
    } catch {
      // Browsers give pages the clipboard over https or on localhost only: select it, and the keyboard can.
      getSelection().selectAllChildren(byId("code-text"));
      byId("copy").textContent = "Selected";
    }
    setTimeout(() => { byId("copy").textContent = "Copy"; }, 1600);
  }
}
