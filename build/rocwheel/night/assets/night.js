"use strict";
(() => {
  const made = document.querySelector("time.made");
  const ago = (from) => {
    const minutes = Math.max(0, Math.round((Date.now() - from) / 60000));
    if (minutes < 90) return `${minutes} min ago`;
    const hours = Math.round(minutes / 60);
    return hours < 48 ? `${hours} h ago` : `${Math.round(hours / 24)} days ago`;
  };
  const tell = () => {
    for (const time of document.querySelectorAll("time")) {
      time.title = time.dateTime;
      time.textContent = ago(Date.parse(time.dateTime));
    }
    const night = document.querySelector("time.night");
    const limit = Number(document.body.dataset.maxAge) * 3600e3;
    const from = Date.parse((night || made).dateTime);
    document.body.classList.toggle("is-stale", Date.now() - from > limit);
  };
  tell();
  setInterval(tell, 60000);
  const box = document.querySelector("#filter");
  if (box) {
    box.hidden = false;
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const section of document.querySelectorAll("section.family")) {
        let any = false;
        for (const row of section.querySelectorAll("tbody tr")) {
          const text = `${section.dataset.family} ${row.textContent}`.toLowerCase();
          row.hidden = !words.every((word) => text.includes(word));
          any = any || !row.hidden;
        }
        section.hidden = !any && words.length > 0;
      }
    });
  }
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.textContent = "copied";
    });
  }
})();
