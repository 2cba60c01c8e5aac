from confide.cli import main

main()
