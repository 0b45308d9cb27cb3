"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  // Tips: all texts stand in attributes and are put in as text.
  const tip = document.getElementById("tip");
  document.addEventListener("pointermove", (event) => {
    const part = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = !part;
    if (!part) return;
    tip.textContent = part.dataset.tip;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
  });

  // The slider goes along the best widths for each budget.
  const slider = document.getElementById("slider");
  if (slider && data.points.length) {
    const cells = [...document.querySelectorAll("#what-if-strip .cell")];
    const chosen = cells.map((cell) => Number(cell.textContent));
    const repaint = () => {
      const point = data.points[Number(slider.value)];
      cells.forEach((cell, place) => {
        const bits = point.bits[place];
        const [colour, ink] = data.colours[bits];
        cell.textContent = bits;
        cell.style.background = colour;
        cell.style.color = ink;
        cell.classList.toggle("changed", bits !== chosen[place]);
        cell.dataset.tip = `${data.layers[place]}: ${bits} bits`;
      });
      const costs = Object.entries(point.costs).map(([name, amount]) => `${name} ${amount}`);
      document.getElementById("what-if-costs").textContent =
        `${costs.join(", ")}; ${point.worth}`;
    };
    slider.max = data.points.length - 1;
    slider.value = data.chosen;
    slider.addEventListener("input", repaint);
    repaint();
  }

  // The network's picture in another size.
  const network = document.getElementById("network");
  if (network) {
    let factor = 1;
    const resize = () => {
      network.setAttribute("width", network.dataset.width * factor);
      network.setAttribute("height", network.dataset.height * factor);
    };
    document.querySelectorAll("[data-zoom]").forEach((button) =>
      button.addEventListener("click", () => {
        const change = Number(button.dataset.zoom);
        factor = change ? factor * change : (network.parentElement.clientWidth - 20) / network.dataset.width;
        resize();
      })
    );
  }
})();
