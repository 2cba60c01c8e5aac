from confide.app.cli import main

main()
