// What Gradio lacks: names for screen readers, a focus that stays, keys that answer, and texts that a reload keeps.
new MutationObserver(() => {
    for (const box of document.querySelectorAll("textarea.edit-textarea:not([aria-label])")) box.ariaLabel = "New text";
    for (const list of document.querySelectorAll(".examples[role=list]")) list.role = "group";  // of buttons
    for (const each of document.querySelectorAll(".placeholder-content[role]")) each.removeAttribute("role");
    for (const log of document.querySelectorAll("[role=log]")) {
        const name = log.closest(".conversation").querySelector("label").innerText.trim();
        Object.assign(log, {tabIndex: 0, ariaLabel: name});
        for (const option of log.querySelectorAll(".option")) option.ariaLabel = `${name}: ${option.innerText}`;
    }
    // What had the focus is gone when the next item is shown.
    const judged = document.querySelector(".judging");
    if (!judged || document.activeElement !== document.body) return;
    const keys = judged.querySelector(".option") ? "; the keys 1, 2 and so on answer" : "";
    Object.assign(judged, {tabIndex: -1, role: "group", ariaLabel: `What to judge${keys}`});
    judged.focus({preventScroll: true});
}).observe(document, {childList: true, subtree: true});

// A digit chooses the reply or rating of this number, such as "Reply 1: This reply is better" or "Reply: 1: bad".
document.addEventListener("keydown", ({key, target, repeat, ctrlKey, altKey, metaKey}) => {
    if (!/^\d$/.test(key) || repeat || ctrlKey || altKey || metaKey || target.matches("textarea")) return;
    const options = [...(target.closest(".judging")?.querySelectorAll(".option") ?? [])];
    const chosen = options.find(option => option.ariaLabel.match(`^\\w+:? ${key}:`));
    if (chosen && getComputedStyle(chosen).pointerEvents !== "none") chosen.click();
});

// After an interruption Gradio loads the page again: a message is kept for its box, an edited text to be read.
let edited = "";
document.addEventListener("input", ({target}) => { if (target.matches(".edit-textarea")) edited = target.value; });
const request = window.fetch;
window.fetch = async (...args) => {
    const answer = await request(...args);
    if (edited && String(args[0]).includes("/queue/join")) {  // it was received
        edited = "";
        document.querySelector("#unsaved").hidden = true;
    }
    return answer;
};
addEventListener("pagehide", () => {
    sessionStorage.message = document.querySelector("#text textarea")?.value ?? "";
    sessionStorage.edited = edited;
});
const kept = name => sessionStorage[name] ?? "";
const unsaved = () => {
    const note = Object.assign(document.createElement("p"), {className: "problem", role: "alert"});
    note.textContent = `Not saved, since the server was gone: ${kept("edited")}`;
    return kept("edited") && note.outerHTML.replace(/[{}$]/g, character => `&#${character.charCodeAt()};`);
};
