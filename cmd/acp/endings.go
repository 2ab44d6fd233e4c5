package main

// The ways in which a runtime is ended for the report.
const (
	endOfInput = "end of input"
	sigterm    = "SIGTERM"
	kill       = "kill"
	killFirst  = "kill of first alone"
)

var waysToEnd = [...]string{endOfInput, sigterm, kill, killFirst}
