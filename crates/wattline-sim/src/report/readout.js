document.querySelectorAll("svg.power").forEach(function (plot, index) {
  var out = plot.closest("figure").querySelector(".readout");
  var slices = plot.querySelectorAll(".slice");
  var lit = null;
  if (!out || !slices.length) return;
  if (index === 0) out.textContent = "Point at the plot to read its values.";
  function show(event) {
    var left = slices[0].getBoundingClientRect().left;
    var right = slices[slices.length - 1].getBoundingClientRect().right;
    var share = (event.clientX - left) / (right - left);
    var i = Math.max(0, Math.min(slices.length - 1, Math.floor(share * slices.length)));
    if (lit) lit.classList.remove("lit");
    lit = slices[i];
    lit.classList.add("lit");
    out.textContent = lit.querySelector("title").textContent;
  }
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
});
