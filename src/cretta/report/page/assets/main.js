// Reads the page's data and fills the sections.

const data = JSON.parse(document.getElementById("data").textContent);
const tables = document.getElementById("table-list");
tables.append(...data.tables.map(tableSection));
if (data.runs) {
  tables.append(tableSection(data.runs));
  new Curves(data, showDiagrams);
  window.addEventListener("resize", () => arrangeDiagrams(document.getElementById("diagrams")));
  buildSettings(data);
}
document.documentElement.dataset.ready = "yes";
