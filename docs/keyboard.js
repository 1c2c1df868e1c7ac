// What scrolls sideways can be reached with the keyboard.
document$.subscribe(() =>
  setTimeout(() => {
    const scrolling = "pre > code, .md-typeset__scrollwrap, .highlight-ipynb, .jp-OutputArea-output pre, .md-typeset pre";
    for (const element of document.querySelectorAll(scrolling)) element.tabIndex = 0;
  }),
);
