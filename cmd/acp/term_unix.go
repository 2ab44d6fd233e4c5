//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalSize returns the size of the terminal that f is; false if it is none.
func terminalSize(f *os.File) (cols, rows int, ok bool) {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ) // #nosec G115 -- a descriptor
	if err != nil {
		return 0, 0, false
	}
	return int(ws.Col), int(ws.Row), true
}

// drawable reports whether the terminal f obeys cursor sequences.
func drawable(*os.File) bool {
	term := os.Getenv("TERM")
	return term != "" && term != "dumb"
}
