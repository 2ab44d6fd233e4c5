module github.com/sortie-ai/acp

go 1.26

require golang.org/x/sys v0.1.0
