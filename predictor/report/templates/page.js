// Arrow keys walk the marks of a chart, which is one stop of the Tab key; the mark in focus is told below the chart.
// Without this script every mark is a stop of its own, and has its title.
"use strict";
function walkCharts(root) {
  for (const chart of root.querySelectorAll("svg.chart")) {
    const marks = [...chart.querySelectorAll(".mark")];
    const readout = chart.parentElement.querySelector(".readout");
    const tell = (mark) => { if (readout) readout.textContent = mark ? mark.getAttribute("aria-label") : ""; };
    const go = (index) => {
      const next = marks[Math.max(0, Math.min(marks.length - 1, index))];
      for (const mark of marks) mark.setAttribute("tabindex", mark === next ? "0" : "-1");
      next.focus();
    };
    marks.forEach((mark, i) => {
      if (i) mark.setAttribute("tabindex", "-1");
      mark.addEventListener("focus", () => tell(mark));
      mark.addEventListener("mouseenter", () => tell(mark));
      mark.addEventListener("keydown", (event) => {
        const steps = { ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1, Home: 0, End: marks.length - 1 };
        if (!(event.key in steps)) return;
        event.preventDefault();
        go(steps[event.key]);
      });
    });
    chart.addEventListener("mouseleave", () => tell(chart.contains(document.activeElement) ? document.activeElement : null));
  }
}
walkCharts(document);
