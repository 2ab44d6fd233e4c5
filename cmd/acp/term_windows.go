package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// terminalSize returns the size of the console that f is; false if it is none.
func terminalSize(f *os.File) (cols, rows int, ok bool) {
	h := windows.Handle(f.Fd())
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(h, &info) == nil {
		w := info.Window
		return int(w.Right-w.Left) + 1, int(w.Bottom-w.Top) + 1, true
	}
	var mode uint32 // the input side of a console has a mode and no buffer
	return 0, 0, windows.GetConsoleMode(h, &mode) == nil
}

// drawable makes the console f obey cursor sequences, if it can.
func drawable(f *os.File) bool {
	h := windows.Handle(f.Fd())
	var mode uint32
	if windows.GetConsoleMode(h, &mode) != nil {
		return false
	}
	return windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
